"""Hooks: how checkers and measurements observe a world.

A subclass overrides the hooks it needs and is called only for those, so an unused hook costs
nothing.
"""

from collections.abc import Callable, Iterable, Sequence, Set
from typing import Protocol

from hansa.protocol.effects import Effect, Send
from hansa.protocol.events import Event
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.wire.frames import AnyFrame, CoreAnnouncement
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.network import LinkEnd
from hansa.simulator.world.site import Site


class Hooks:
    """Observes a world and must not change it."""

    def on_agent_started(self, site: Site) -> None:
        """An agent starts."""

    def on_agent_stopped(self, site: Site) -> None:
        """An agent has stopped, for any reason."""

    def on_notification(self, site: Site, notification: Effect) -> None:
        """A node reports what happened: a notification, or a `ReportedCommand`."""

    def on_event_handled(self, site: Site, event: Event, effects: Sequence[Effect]) -> None:
        """A node has handled an event; its effects are not performed yet."""

    def on_frame_sent(self, site: Site, send: Send, frame_bytes: int) -> None:
        """A node sends a frame."""

    def on_announcement_sent(self, end: LinkEnd, frame: CoreAnnouncement) -> None:
        """A node sends a core announcement."""

    def on_copy_sent(self, end: LinkEnd, publication: Publication) -> None:
        """A node sends a copy of a publication."""

    def on_published(self, entry: LedgerEntry) -> None:
        """A client publishes."""

    def on_delivered(self, site: Site, publication: Publication, entry: LedgerEntry | None) -> None:
        """An agent passes a publication to its broker; `entry` is None if no client published
        it."""

    def on_state_changed(self, site: Site) -> None:
        """A node's control state may have changed."""

    def on_delivery_changed(self, site: Site) -> None:
        """A node's state of guaranteed delivery may have changed, and nothing else."""

    def on_disturbance(self, description: str, is_fault: bool, places: tuple[int, ...]) -> None:
        """A fault or a change of interest, at these places if any; the federation has to adapt."""

    def on_run_finished(self) -> None:
        """The run is over."""


class Interceptor(Protocol):
    """Controls the frames of a compromised node. Hooks do not observe such nodes."""

    @property
    def ids(self) -> Set[NodeId]:
        """Ids that it had or invented."""

    @property
    def misled_origins(self) -> Set[NodeId]:
        """Origins that it sent receipts with false positions and genuine proofs."""

    def incoming(self, frame: object) -> None:
        """A neighbour sent a frame."""

    def outgoing(self, frame: AnyFrame | Publication) -> AnyFrame | Publication | None:
        """Return what to send in place of a frame of the node; None to drop it."""

    def play(self, attack: str) -> None:
        """Play an attack now."""


class HookCallbacks:
    """The hooks of a world, by event."""

    def __init__(self, hooks: Iterable[Hooks]) -> None:
        all_hooks = list(hooks)
        self.on_agent_started = _callbacks_for(all_hooks, "on_agent_started")
        self.on_agent_stopped = _callbacks_for(all_hooks, "on_agent_stopped")
        self.on_notification = _callbacks_for(all_hooks, "on_notification")
        self.on_event_handled = _callbacks_for(all_hooks, "on_event_handled")
        self.on_frame_sent = _callbacks_for(all_hooks, "on_frame_sent")
        self.on_announcement_sent = _callbacks_for(all_hooks, "on_announcement_sent")
        self.on_copy_sent = _callbacks_for(all_hooks, "on_copy_sent")
        self.on_published = _callbacks_for(all_hooks, "on_published")
        self.on_delivered = _callbacks_for(all_hooks, "on_delivered")
        self.on_state_changed = _callbacks_for(all_hooks, "on_state_changed")
        self.on_delivery_changed = _callbacks_for(all_hooks, "on_delivery_changed")
        self.on_disturbance = _callbacks_for(all_hooks, "on_disturbance")
        self.on_run_finished = _callbacks_for(all_hooks, "on_run_finished")


def _callbacks_for(hooks: Iterable[Hooks], name: str) -> list[Callable[..., None]]:
    default = getattr(Hooks, name)
    return [getattr(w, name) for w in hooks if getattr(type(w), name) is not default]
