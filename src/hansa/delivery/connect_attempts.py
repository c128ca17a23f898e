"""Connection attempts whose result is not durable yet.

A broker that lost the node's session says so once, in CONNACK. If CONNACK is lost, or the process
stops before the consequences are durable, the next CONNACK reports the new session as if it were
the old one. A marker on disk exists for as long as that can happen: the shell creates it before it
sends CONNECT, and removes it when nothing is uncertain any more.
"""

from hansa.delivery.context import Context
from hansa.delivery.effects import RemoveConnectMarker

UNCERTAIN_ALARM = "broker session uncertain"
SESSION_UNCERTAIN = (
    "a connection attempt was interrupted: if the broker lost the agent's session meanwhile, "
    "publications in flight may be lost or duplicated"
)


class ConnectAttempts:
    """State of the connection attempt that the marker stands for."""

    def __init__(self, context: Context, is_uncertain: bool) -> None:
        """`is_uncertain` says that a previous incarnation left a marker."""
        self._context = context
        self._is_uncertain = is_uncertain
        """Whether the session that the broker reports may be a new one."""
        self._is_connecting = False
        self._is_loss_pending = False

    def on_connect_started(self) -> None:
        """CONNECT is about to be sent."""
        self._is_uncertain |= self._is_connecting
        self._is_connecting = True

    def on_connect_refused(self) -> None:
        """CONNECT was refused or not sent: there is no new session."""
        self._is_connecting = False
        self._remove_if_done()

    def on_session_kept(self) -> None:
        """The broker reports a session: it may be a new one if an attempt was interrupted."""
        is_uncertain = self._is_uncertain
        self._context.counters["broker sessions uncertain"] += is_uncertain
        self._context.set_alarm(UNCERTAIN_ALARM, SESSION_UNCERTAIN if is_uncertain else "")
        self._is_connecting = self._is_uncertain = False
        self._remove_if_done()

    def on_session_lost(self) -> None:
        """The broker lost the session; `on_loss_durable` follows when that is durable."""
        self._context.set_alarm(UNCERTAIN_ALARM, "")
        self._is_connecting = self._is_uncertain = False
        self._is_loss_pending = True

    def on_loss_durable(self) -> None:
        self._is_loss_pending = False
        self._remove_if_done()

    def _remove_if_done(self) -> None:
        if not (self._is_connecting or self._is_uncertain or self._is_loss_pending):
            self._context.effects.append(RemoveConnectMarker())
