"""Invariant: all interested brokers store the same retained message."""

from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

REPAIRED_S = 60.0
"""Seconds after the last write and the last fault within which brokers must agree."""


class RetainedAgree(Checker):
    """If nothing was written or disturbed in the last minute of a run, all brokers interested in a
    topic store the same message; and if clients of only one broker wrote it, the one stored there.
    """

    name = "retained values agree"

    def __init__(self, world: World, violations: list[str]) -> None:
        super().__init__(world, violations)
        self._writers: dict[str, dict[int, None]] = {}
        self._last_s = 0.0

    def on_published(self, entry: LedgerEntry) -> None:
        """Record the writers of a topic."""
        if entry.retain:
            self._writers.setdefault(entry.topic, {})[entry.place] = None
            self._last_s = self.world.now

    def on_disturbance(self, description: str, is_fault: bool, places: tuple[int, ...]) -> None:
        """Restart the minute."""
        self._last_s = self.world.now

    def on_run_finished(self) -> None:
        if self.world.now < self._last_s + REPAIRED_S:
            return
        if not all(site.is_serving_clients for site in self.world.sites):
            return
        for topic, writers in self._writers.items():
            sites = [site for site in self.world.sites if site.broker.has_plain_subscriber(topic)]
            if len(writers) == 1:
                sites += [self.world.sites[place] for place in writers]
            if len({_stored(site, topic) for site in sites}) > 1:
                held = ", ".join(f"n{site.place}: {_stored(site, topic)!r}" for site in sites)
                self.report_violation(f"brokers store different values of {topic}: {held}")


def _stored(site: Site, topic: str) -> bytes | None:
    found = site.broker.stored.get(topic)
    return found[0] if found else None
