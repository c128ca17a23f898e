"""The subscriptions of this node's session at the broker, as they are saved for a restart.

Queued publications name subscriptions by identifier, so the next incarnation must know the
identifiers and their order to tell copies apart. A change is a filter with its identifier when it
is subscribed, with -1 when UNSUBSCRIBE is sent, with 0 when it is confirmed. A new filter must be
durable before SUBSCRIBE is sent, otherwise its identifier could be assigned again after a power
failure. An unsubscription need not be: it is then requested again.
"""

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from hansa.delivery.dedup.echo import SavedEchoes
from hansa.delivery.subscriptions.table import remember_bounded
from hansa.mqtt.types import Version

LEAVING = -1
ENDED = 0

VERSION_3_1_1 = -2
"""With END_NAME: the session is one of MQTT 3.1.1."""

END_NAME = ""
"""Name in the change of an unsubscribed filter, with its identifier and the last one assigned then;
with 0, the last one of all."""


class SubscriptionChange(msgspec.Struct, array_like=True, omit_defaults=True):
    name: str
    identifier: int
    last_identifier: int = 0


class SavedSubscriptions:
    """The saved subscriptions, and the changes that are not saved yet."""

    def __init__(self, saved: Iterable[SubscriptionChange] = (), has_session: bool = False) -> None:
        """`saved` are the changes of earlier incarnations."""
        self.has_session = has_session
        """Whether the broker keeps a session of this node."""
        self.version = Version.V5
        """MQTT version of that session."""
        self.echoes: SavedEchoes | None = None
        """Own publications that a session of MQTT 3.1.1 will send back; None if the previous
        incarnation crashed."""
        self.identifiers: dict[str, int] = {}
        """Filters with their identifiers, or LEAVING, in the order of subscription."""
        self.last_identifier = 0
        """The last identifier assigned."""
        self.last_identifier_at_end: OrderedDict[int, int] = OrderedDict()
        """The last identifier assigned when another one's filter ended."""
        self._assigned: dict[str, int] = {}
        """Identifiers, including those of filters that are LEAVING."""
        self._unsaved: list[SubscriptionChange] = []
        self._needs_rewrite = True
        """Whether everything has to be saved. True at first: the previous incarnation may not have
        synced."""
        for change in saved:
            self._apply(change)

    @property
    def has_unsaved(self) -> bool:
        """Whether changes are not saved yet."""
        return self._needs_rewrite or bool(self._unsaved)

    def record(self, name: str, identifier: int) -> None:
        """Record that a filter was subscribed, is LEAVING or has ENDED."""
        change = SubscriptionChange(name, identifier)
        self._apply(change)
        self._unsaved.append(change)

    def clear(self) -> None:
        """Record that the broker has no subscriptions."""
        self.identifiers.clear()
        self.last_identifier_at_end.clear()
        self._assigned.clear()
        self.last_identifier = 0
        self.request_rewrite()

    def request_rewrite(self) -> None:
        """Save everything anew: it is unknown how much was saved, or much of it is outdated."""
        self._needs_rewrite = True

    def take_unsaved(self) -> list[SubscriptionChange] | None:
        """Return the changes to append, or None if everything has to be saved anew; they count as
        saved from now on."""
        changes, self._unsaved = self._unsaved, []
        is_anew, self._needs_rewrite = self._needs_rewrite, False
        return None if is_anew else changes

    def summary(self) -> list[SubscriptionChange]:
        """Return the changes that restore this state."""
        leaving = [name for name, identifier in self.identifiers.items() if identifier == LEAVING]
        is_old = self.version is Version.V311
        version = (SubscriptionChange(END_NAME, VERSION_3_1_1),) if is_old else ()
        return [
            *(
                SubscriptionChange(name, self._assigned[name])
                for name in leaving
                if name in self._assigned
            ),
            *(
                SubscriptionChange(name, identifier)
                for name, identifier in self.identifiers.items()
            ),
            *(
                SubscriptionChange(END_NAME, identifier, last)
                for identifier, last in self.last_identifier_at_end.items()
            ),
            SubscriptionChange(END_NAME, 0, self.last_identifier),
            *version,
        ]

    def _apply(self, change: SubscriptionChange) -> None:
        name, identifier, last = change.name, change.identifier, change.last_identifier
        self.last_identifier = max(self.last_identifier, identifier, last)
        if name == END_NAME:
            if identifier == VERSION_3_1_1:
                self.version = Version.V311
            elif identifier:
                remember_bounded(self.last_identifier_at_end, identifier, last)
        elif identifier == ENDED:
            self.identifiers.pop(name, None)
            remember_bounded(
                self.last_identifier_at_end, self._assigned.pop(name, 0), self.last_identifier
            )
        else:
            self.identifiers[name] = identifier
            if identifier > 0:
                self._assigned[name] = identifier
