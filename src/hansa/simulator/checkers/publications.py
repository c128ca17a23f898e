"""Invariants of publications: no phantom, no duplicate, no loop, complete delivery."""

from hansa.protocol.model import HOPS_MAX, GroupId, Publication
from hansa.protocol.topics import is_local_only
from hansa.simulator.analysis.convergence import ConvergenceTracker
from hansa.simulator.analysis.ground_truth import Component
from hansa.simulator.checkers.base import Checker
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.network import REORDER_FACTOR, LinkEnd
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World


class NoPhantom(Checker):
    """A delivered publication was published elsewhere, byte for byte, and is allowed to cross
    brokers. A compromised node may publish anything in its own name, and at QoS 0 also in that of
    nodes behind it."""

    name = "no phantom"

    def on_delivered(self, site: Site, publication: Publication, entry: LedgerEntry | None) -> None:
        if is_local_only(publication.topic):
            self.report_violation(
                f"n{site.place} delivers {publication}, which must not leave its broker"
            )
        if self.world.compromised and not (
            publication.qos and self.world.is_honest(publication.origin)
        ):
            return
        if entry is None:
            self.report_violation(
                f"n{site.place} delivers {publication}, which no client published"
            )
            return
        got = (publication.topic, publication.payload, publication.qos)
        is_flagged = publication.retain and not entry.retain  # a replaced value has no flag (9.2)
        if got != (entry.topic, entry.payload, entry.qos) or is_flagged:
            self.report_violation(
                f"n{site.place} delivers {publication}, but {entry} was published"
            )
        if site.place == entry.place:
            self.report_violation(f"n{site.place} delivers its own publication {entry.number}")


class AtMostOnce(Checker):
    """A broker gets a publication at most once. A crash clears an agent's duplicate filter, unless
    it has a disk: then QoS 1 and 2 have their own guarantee (see `guarantees`)."""

    name = "at most once"

    def __init__(self, world: World, violations: list[str]) -> None:
        super().__init__(world, violations)
        self._delivered_numbers: dict[tuple[int, int], set[int]] = {}

    def on_delivered(self, site: Site, publication: Publication, entry: LedgerEntry | None) -> None:
        """Check whether this process of the agent has delivered it before. An attacker may repeat
        publications of QoS 0 with other numbers."""
        if (publication.qos and self.world.options.disk) or self.world.compromised:
            return
        seen = self._delivered_numbers.setdefault((site.place, site.process_run), set())
        if entry is not None and entry.number in seen:
            self.report_violation(f"n{site.place} delivers publication {entry.number} again")
        elif entry is not None:
            seen.add(entry.number)


class NoLoop(Checker):
    """A publication crosses each direction of a link once to spread, and once per group that it
    targets there; and it travels at most the hop limit. A compromised origin may publish the same
    number again when relays have forgotten it, so only the hop limit counts for it."""

    name = "no loop"

    def __init__(self, world: World, violations: list[str]) -> None:
        super().__init__(world, violations)
        self._crossings: dict[tuple[object, ...], tuple[int, frozenset[GroupId]]] = {}

    def on_copy_sent(self, end: LinkEnd, publication: Publication) -> None:
        """Count a copy per session: an older session may have led to another node."""
        name = (publication.origin, publication.epoch, publication.sequence, publication.qos > 0)
        link = f"n{end.host.place}>n{end.peer.host.place}"
        if not self.world.compromised or self.world.is_honest(publication.origin):
            crossing = (end.host.place, end.id, *name)
            count, target_groups = self._crossings.get(crossing, (0, frozenset()))
            count, target_groups = count + 1, target_groups.union(publication.target_groups)
            self._crossings[crossing] = (count, target_groups)
            if count > 1 + len(target_groups):
                self.report_violation(
                    f"publication {name} crosses {link} {count} times for"
                    f" {len(target_groups)} target groups"
                )
        if publication.hops > HOPS_MAX:
            self.report_violation(f"publication {name} travels {publication.hops} hops at {link}")


class UndisturbedPublicationChecker(Checker):
    """Checks QoS 0 publications made while the federation is converged, if no disturbance follows
    until they must have arrived; not retained ones, which may wait for earlier ones. For strategies
    that compute paths from the database a change of that (a round-trip time) is a disturbance, too.
    """

    def __init__(self, world: World, violations: list[str], tracker: ConvergenceTracker) -> None:
        super().__init__(world, violations)
        self._tracker = tracker
        links = world.options.links
        slowest = max([links.delay_ms, *(delay for _, _, delay in links.delays_ms)])
        hop = (slowest + links.jitter_ms) / 1000 * (REORDER_FACTOR if links.reorder else 1)
        self._transit_s = (len(world.sites) + 2) * hop + 4 * links.broker_delay_ms / 1000
        self._is_lossless = not (links.loss or links.frames_in_flight_max)
        self.checked_count = 0

    def check_publication(
        self, entry: LedgerEntry, component: Component, expected_places: tuple[int, ...]
    ) -> None:
        """Check a publication that must have arrived at these places."""

    def on_published(self, entry: LedgerEntry) -> None:
        if (
            self._is_lossless
            and not entry.qos
            and not entry.retain
            and self._tracker.is_converged
            and self.world.sites[entry.place].is_serving_clients
        ):
            self.world.scheduler.after(self._transit_s, self._check_later, entry, self._situation())

    def _situation(self) -> object:
        return self._tracker.disturbance_count, self._tracker.path_fingerprint()

    def _check_later(self, entry: LedgerEntry, situation: object) -> None:
        part = self._tracker.truth.component_of(self.world.sites[entry.place])
        if self._situation() != situation or part is None:
            return
        self.checked_count += 1
        served = {site.place for site in part.sites if site.is_serving_clients}
        self.check_publication(
            entry, part, tuple(place for place in entry.expected_places if place in served)
        )


class Completeness(UndisturbedPublicationChecker):
    """An undisturbed publication reaches every interested broker. (QoS 1 and 2: see
    `guarantees`.)"""

    name = "completeness"

    def check_publication(
        self, entry: LedgerEntry, component: Component, expected_places: tuple[int, ...]
    ) -> None:
        missing = [place for place in expected_places if place not in entry.delivered_at]
        if missing:
            places = ", ".join(f"n{place}" for place in missing)
            text = f"publication {entry.number} on {entry.topic} from n{entry.place}"
            self.report_violation(f"{text} did not reach {places}")
