"""What one can watch in a world: the hooks behind which checkers and measurements stand.

A watcher overrides what it needs and is called for nothing else, so a hook that nobody watches
costs nothing.
"""

from collections.abc import Callable, Iterable, Sequence

from hansa.protocol.effects import Effect, News, Send
from hansa.protocol.events import Event
from hansa.protocol.model import Publication
from hansa.protocol.wire.frames import Announce
from hansa.simulator.analysis.ledger import Entry
from hansa.simulator.world.network import End
from hansa.simulator.world.site import Site


class Watcher:
    """Sees what happens and must not change it."""

    def started(self, site: Site) -> None:
        """An agent starts."""

    def stopped(self, site: Site) -> None:
        """An agent is gone, for whatever reason."""

    def told(self, site: Site, news: News) -> None:
        """A node has news."""

    def handled(self, site: Site, event: Event, wanted: Sequence[Effect]) -> None:
        """A node has handled an event and wants this, which is not done yet."""

    def transmitted(self, site: Site, send: Send, frame_bytes: int) -> None:
        """A frame leaves a node."""

    def announced(self, end: End, frame: Announce) -> None:
        """A node sends a core announcement."""

    def forwarded(self, end: End, publication: Publication) -> None:
        """A node sends a copy of a publication."""

    def published(self, entry: Entry) -> None:
        """A client publishes."""

    def delivered(self, site: Site, publication: Publication, entry: Entry | None) -> None:
        """An agent gives a publication to its broker; `entry` is what was published, if it was."""

    def changed(self, site: Site) -> None:
        """A node's control state may have changed."""

    def disturbed(self, what: str, fault: bool, places: tuple[int, ...]) -> None:
        """Something happened to which the federation must adapt: a fault, or other interest. At
        these places, if it has any."""

    def finished(self) -> None:
        """The run is over."""


class Watchers:
    """All watchers of a world: per hook, those that override it."""

    def __init__(self, watchers: Iterable[Watcher]) -> None:
        """Sort the watchers by hook."""
        everybody = list(watchers)
        self.started = _overriding(everybody, "started")
        self.stopped = _overriding(everybody, "stopped")
        self.told = _overriding(everybody, "told")
        self.handled = _overriding(everybody, "handled")
        self.transmitted = _overriding(everybody, "transmitted")
        self.announced = _overriding(everybody, "announced")
        self.forwarded = _overriding(everybody, "forwarded")
        self.published = _overriding(everybody, "published")
        self.delivered = _overriding(everybody, "delivered")
        self.changed = _overriding(everybody, "changed")
        self.disturbed = _overriding(everybody, "disturbed")
        self.finished = _overriding(everybody, "finished")


def _overriding(watchers: Iterable[Watcher], hook: str) -> list[Callable[..., None]]:
    idle = getattr(Watcher, hook)
    return [getattr(w, hook) for w in watchers if getattr(type(w), hook) is not idle]
