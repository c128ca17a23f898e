"""Log lines of an agent: one line per event that an operator can act on.

A line is `event key=value …`: a node has its name beside its id, text of clients and peers is
quoted, and no line shows a Python object. An event that repeats while its cause lasts (an
unreachable neighbour, a stranger that connects) is logged once and then only at debug level;
docs/how-to/troubleshoot.md lists the lines.
"""

import logging
import re
import time
from collections.abc import Callable

from hansa.agent.admin.history import History
from hansa.agent.audit_log import AuditLog
from hansa.agent.broker.connection import LOGIN_REFUSED
from hansa.agent.error_text import quote_text
from hansa.agent.links.link import Address, Link
from hansa.observers import base as observer_base
from hansa.observers.base import ObserverFinding
from hansa.protocol import effects
from hansa.protocol.model import NodeId

log = logging.getLogger("hansa.agent")

LOGGED_MAX = 1_024
"""Events remembered as logged; when full, all are logged again."""

REFUSAL_SHOWN_S = 10.0
"""Seconds for which a refusal or a failed attempt is shown: a dialler retries within seven."""

REFUSALS_MAX = 16

DIALLED_REFUSALS_MAX = 256
"""Dialled addresses whose last refusal is remembered."""

NODE_FIELDS = ("node", "core", "origin", "receiver", "requester")
"""Fields of effects that are node ids."""


class EventLog:
    def __init__(
        self, name_of: Callable[[NodeId], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.audit = AuditLog()
        """Log of security events; writes nothing until the agent sets one with a directory."""
        self.history = History(name_of)
        """The last events, for the page."""
        self._clock = clock
        self.name_of = name_of
        self._logged: dict[tuple[str, str], None] = {}
        self._refused_at: dict[str, float] = {}
        self._not_reached: dict[str, tuple[str, float]] = {}
        self._dialled_refusals: dict[str, str] = {}

    def log_notification(self, effect: effects.Effect) -> None:
        """Log a notification of the node: nodes and neighbours always, groups only at debug
        level."""
        self.history.add_notification(effect)
        match effect:
            case effects.LinkRefused(_, reason):
                self._log_once("refused", "", reason, "link refused reason=%r", reason)
                self._refused_at.pop(reason, None)
                self._refused_at[reason] = self._clock()
                if len(self._refused_at) > REFUSALS_MAX:
                    del self._refused_at[next(iter(self._refused_at))]
            case effects.NeighbourUp(node):
                self._logged.clear()  # a link is up: log later failures again
                self._refused_at.clear()
                self._not_reached.clear()
                log.info("neighbour up %s", self._label_node(node))
            case effects.NeighbourDown(node, reason):
                log.warning("neighbour down %s reason=%r", self._label_node(node), reason)
            case effects.NodeReachable(node):
                log.info("node reachable %s", self._label_node(node))
            case effects.NodeUnreachable(node):
                log.warning("node unreachable %s", self._label_node(node))
            case effects.IncarnationRaised(incarnation):
                log.warning("incarnation raised incarnation=%d", incarnation)
            case effects.Ignored(reason) if reason.startswith("subscription denied"):
                log.warning("%s", reason)
            case _:
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("%s", self.describe(effect))

    def recent_refusals(self) -> list[str]:
        """Return why links were refused lately, the newest last."""
        since = self._clock() - REFUSAL_SHOWN_S
        return [reason for reason, at in self._refused_at.items() if at > since]

    def not_reached(self) -> dict[str, str]:
        """Return the addresses that could not be dialled lately, with reasons."""
        since = self._clock() - REFUSAL_SHOWN_S
        return {address: why for address, (why, at) in self._not_reached.items() if at > since}

    def log_link_closed(self, link: Link, reason: str) -> None:
        """Log why a link has closed; for a neighbour's link the node also notifies."""
        # For incoming links only the host stays the same between attempts.
        who = link.remote if link.dialled_address else link.remote.rpartition(":")[0]
        self._log_once("link", who, reason, "link closed remote=%s reason=%r", link.remote, reason)

    def log_unauthenticated(self, remote: str, reason: str) -> None:
        """Log that a peer that connected could not prove to be a member."""
        self.audit.record("peer_refused", reason, address=remote)
        text = "peer refused, not authenticated remote=%s reason=%r"
        self._log_once("refused", remote.rpartition(":")[0], reason, text, remote, reason)

    def audit_dialled_refusal(self, address: str, reason: str) -> None:
        """Record once that a dialled peer was not authenticated, or refused us: it is dialled again
        and again. The failed attempt is logged by `log_dial_failed`."""
        if self._dialled_refusals.get(address) != reason:
            if len(self._dialled_refusals) >= DIALLED_REFUSALS_MAX:
                self._dialled_refusals.clear()
            self._dialled_refusals[address] = reason
            self.audit.record("dialled_peer_refused", reason, address=address)

    def log_request_refused(self, remote: str, reason: str) -> None:
        """Log an HTTP request without the right token, Host or Origin."""
        self.audit.record("admin_refused", reason, address=remote)
        text = "request refused remote=%s reason=%r"
        self._log_once("request", remote, reason, text, remote, reason)

    def log_dial_failed(self, address: Address, reason: str) -> None:
        self._not_reached.pop(str(address), None)
        self._not_reached[str(address)] = reason, self._clock()
        if len(self._not_reached) > REFUSALS_MAX:
            del self._not_reached[next(iter(self._not_reached))]
        text = "neighbour not reached, still trying address=%s reason=%r"
        self._log_once("dial", str(address), reason, text, address, reason)

    def log_broker_status(self, address: str, problem: str) -> None:
        """Log that the broker is connected, or why not."""
        self.history.add_broker_status(problem)
        if problem.startswith(LOGIN_REFUSED):
            text = "broker refuses the login, still trying address=%s reason=%r"
            log.warning(text, address, problem)  # the alarm is the error
        elif problem:
            log.warning("broker lost, still trying address=%s reason=%r", address, problem)
        else:
            log.info("broker connected address=%s", address)

    def log_finding(self, finding: ObserverFinding) -> None:
        match finding:
            case observer_base.ObservationComplete():
                log.info("observer complete: every subscription at the broker is known")
            case observer_base.ObservationIncomplete(reason):
                log.warning("observer incomplete, subscriptions may be missing reason=%r", reason)
            case observer_base.BridgeDetected(name, is_up):
                state = "up" if is_up else "down"
                text = "bridge at the broker name=%r state=%s: messages loop if it leads to a node"
                log.warning(text, name, state)
            case observer_base.FilterNotAnnounced(topic_filter, reason):
                log.warning("filter not announced filter=%r reason=%r", topic_filter, reason)
            case observer_base.OversizedPublicationSkipped(size):
                text = "publication too large bytes=%d: more than crosses, see the counters"
                self._log_once("withheld", "", "", text, size)
            case observer_base.BrokerDroppedPublications():
                pass  # reported by an alarm
            case observer_base.ResyncFailed(reason):
                log.warning("resync failed reason=%r", reason)
            case observer_base.SubscriptionCountMismatch(kind, known, counted):
                text = "observer differs from the broker's count kind=%s known=%d counted=%d"
                log.warning(text, quote_text(kind), known, counted)
            case _:
                log.warning("observer: %s", self.describe(finding))

    def describe(self, event: object) -> str:
        """Return an effect or a finding as `event key=value …`."""
        words = re.sub(r"(?<!^)(?=[A-Z])", " ", type(event).__name__).lower()
        named = getattr(event, "__dataclass_fields__", ())
        named = getattr(event, "__struct_fields__", named)
        fields = [self._describe_field(name, getattr(event, name)) for name in named]
        return " ".join([words, *(text for text in fields if text)])

    def _describe_field(self, name: str, value: object) -> str:
        """Return one field as `key=value`; empty if it is a nested record."""
        match value:
            case int() if name in NODE_FIELDS:
                return self._label_node(NodeId(value), name)
            case bool() | int() | float():
                return f"{name}={value}"
            case str():
                return f"{name}={quote_text(value)}"
            case tuple() if name == "parents":
                return f"{name}={','.join(f'{node:016x}' for node in value)}"
            case tuple() if all(isinstance(each, str) for each in value):
                return f"{name}={quote_text(' '.join(value))}"
            case _:
                return ""

    def _label_node(self, node: NodeId, key: str = "node") -> str:
        name = self.name_of(node)
        label = "name" if key == "node" else f"{key}_name"
        return f"{key}={node:016x} {label}={name!r}" if name else f"{key}={node:016x}"

    def _log_once(self, kind: str, who: str, reason: str, text: str, *values: object) -> None:
        key = (f"{kind} {who}", reason)
        log.log(logging.DEBUG if key in self._logged else logging.WARNING, text, *values)
        if len(self._logged) >= LOGGED_MAX:
            self._logged.clear()
        self._logged[key] = None
