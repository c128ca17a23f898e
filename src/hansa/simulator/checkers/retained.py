"""Invariant: all interested brokers store the same retained message."""

from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.clock import AHEAD_MAX_S
from hansa.simulator.analysis.ground_truth import GroundTruth
from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

REPAIRED_S = 60.0
"""Seconds after the last write and the last fault within which brokers must agree."""


class RetainedAgree(Checker):
    """If nothing was written or disturbed in the last minute of a run, all brokers interested in a
    topic store the same message; and if clients of only one broker wrote it, the one stored there.

    With a compromised node this holds for honest nodes with a path of honest nodes. It may write
    any value in its own name, and at QoS 0 in that of nodes behind it (docs/threat-model.md), so
    topics with such a value do not count.
    """

    name = "retained values agree"

    def __init__(self, world: World, violations: list[str], truth: GroundTruth) -> None:
        super().__init__(world, violations)
        self._truth = truth
        self._writers: dict[str, dict[int, NodeId]] = {}
        """Per topic the places of its writers, with the node that was there."""
        self._last_s = 0.0
        self._forged_topics: set[str] = set()
        """Topics with a retained value that no client of its origin published."""

    def on_delivered(self, site: Site, publication: Publication, entry: LedgerEntry | None) -> None:
        """Record forged values. At QoS 1 and 2 there are none (`NoPhantom`)."""
        if publication.retain and not publication.qos:
            is_genuine = entry is not None and publication.payload == entry.payload
            if not is_genuine:
                self._forged_topics.add(publication.topic)

    def on_published(self, entry: LedgerEntry) -> None:
        """Record the writers of a topic."""
        if entry.retain:
            writers = self._writers.setdefault(entry.topic, {})
            writers.setdefault(entry.place, self.world.sites[entry.place].state.id)
            self._last_s = self.world.now

    def on_disturbance(self, description: str, is_fault: bool, places: tuple[int, ...]) -> None:
        """Restart the minute."""
        self._last_s = self.world.now

    def on_run_finished(self) -> None:
        if self.world.now < self._last_s + REPAIRED_S:
            return
        honest = self.world.honest_sites()
        if not all(site.is_serving_clients for site in honest):
            return
        # Without compromised nodes all sites are compared: after a minute none is cut off.
        parts = [part.sites for part in self._truth.components()]
        for part in parts if self.world.compromised else [honest]:
            self._check_agreement(part)

    def _check_agreement(self, part: list[Site]) -> None:
        for topic, writers in self._writers.items():
            if self.world.compromised and not self._is_promised(topic, part):
                continue
            sites = [site for site in part if site.broker.has_plain_subscriber(topic)]
            if len(writers) == 1:
                sites += [site for site in part if site.place in writers]
            if len({_stored(site, topic) for site in sites}) > 1:
                held = ", ".join(f"n{site.place}: {_stored(site, topic)!r}" for site in sites)
                self.report_violation(f"brokers store different values of {topic}: {held}")

    def _is_promised(self, topic: str, part: list[Site]) -> bool:
        """Whether these nodes can agree on a topic in spite of a compromised node: it did not write
        a value, and the writers are among these nodes. An agent that lost its state since is
        another node now, and cannot send the value again. Nodes whose clocks differ too much refuse
        each other's values (9.1)."""
        offsets = [site.state.clock_offset_s for site in part]
        if max(offsets) - min(offsets) > AHEAD_MAX_S:
            return False
        nodes = {site.place: site.state.id for site in part}
        are_here = all(nodes.get(place) == node for place, node in self._writers[topic].items())
        is_forged = topic in self._forged_topics or self._has_false_owner(topic)
        return are_here and not is_forged

    def _has_false_owner(self, topic: str) -> bool:
        """Whether a node believes that a compromised one owns the value."""
        nodes = [site.node for site in self.world.honest_sites() if site.node is not None]
        values = [node.delivery.retained.get(topic) for node in nodes]
        return any(value and not self.world.is_honest(value.owner) for value in values)


def _stored(site: Site, topic: str) -> bytes | None:
    found = site.broker.stored.get(topic)
    return found.payload if found else None
