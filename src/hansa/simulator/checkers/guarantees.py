"""The guarantee of QoS 1 and 2: nothing lost, duplicated or reordered.

A publication is guaranteed to a receiver under these conditions: the publisher's node has
acknowledged the receiver's interest, or enough time without disturbance has passed that it must
have; clients at the receiver stay subscribed to the topic, by any filter; both disks survive; the
broker keeps the agent's session; and no other agent runs with a copy of either identity. Each
publication is captured once, at its own journal position. Losses are reported: those of a full
journal, and those after a separation longer than a lease; no others are allowed.

A duplicate is allowed at QoS 2 only after the broker lost the agent's session, and at QoS 1 only
after a reconnection, at most as many as were in flight. After its agent stopped, an origin may
capture as many publications of QoS 1 again: if several filters match one, its other copy cannot be
distinguished from a new publication with equal content. An origin with a restored older state may
do so for any number and at QoS 2. Order is that of first deliveries,
separately for each QoS: a broker holds QoS 2 until it is released and may let QoS 1 overtake. A
publication that the agent once acknowledged without appending it, and that its broker redelivers,
may arrive at any time.

If nodes are compromised, all this holds for honest nodes with a path of honest nodes between them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from hansa.protocol.delivery.outbox import ROLLOVER_PAUSE_S
from hansa.protocol.effects import DeliveryAbandoned, EpochRolloverRequired, Gap, Repaired
from hansa.protocol.membership.records import InterestRecord, Record, Stamp
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.node import Node
from hansa.protocol.topics import is_local_only, matches, split_share
from hansa.simulator.analysis.convergence import ConvergenceTracker, convergence_limit_s
from hansa.simulator.checkers.base import Checker
from hansa.simulator.checkers.separations import Separations
from hansa.simulator.result import GuaranteeSummary
from hansa.simulator.world.ledger import LedgerEntry, ledger_number
from hansa.simulator.world.site import Site
from hansa.simulator.world.world import World

RESUBSCRIBE_LIMIT_S = 1.0
"""Seconds that an agent may take to renew its subscriptions, after a start or a lost session."""


@dataclass(frozen=True, slots=True)
class DeliveryObligation:
    """A publication that must reach a node."""

    entry: LedgerEntry
    origin: NodeId
    receiver: NodeId
    place: int
    lapse_count: int
    """How often the last subscriber of its topic had left the receiver before it was published."""

    @property
    def is_delivered(self) -> bool:
        return self.place in self.entry.delivered_at


class GuaranteedDelivery(Checker):
    """Guaranteed publications arrive, once and in the order of their origin."""

    name = "guaranteed"

    def __init__(self, world: World, violations: list[str], tracker: ConvergenceTracker) -> None:
        super().__init__(world, violations)
        self._tracker = tracker
        self._obligations: list[DeliveryObligation] = []
        self._uncertain_until: dict[NodeId, float] = {}
        self._shared_ids: set[NodeId] = set()
        """Ids that two sites have or had."""
        self._rolled_back: dict[NodeId, int] = {}
        """Nodes whose state was rolled back, with the number of later publications that their
        brokers may mistake for those of the newer state."""
        self._rollover_at: dict[NodeId, float] = {}
        self._convergence_limit_s = convergence_limit_s(world.options)
        self._disturbed_at = 0.0
        self._newest_delivered: dict[tuple[int, NodeId, NodeId, int], int] = {}
        self._first_connection: dict[tuple[int, int], tuple[int, float]] = {}
        self._repeat_counts: dict[tuple[int, int], int] = {}
        self._confirmed_lapse_count: dict[
            tuple[NodeId, NodeId, str], int
        ] = {}  # lapses at its start
        lease_s = world.options.protocol.interest_lease
        self._can_leases_expire = world.options.disk and lease_s < world.options.end_s
        self._separations = Separations(world, tracker.truth, lease_s, self._convergence_limit_s)
        self._gap_count = 0
        self._excused_gaps: dict[tuple[NodeId, NodeId], list[Gap | DeliveryAbandoned]] = {}
        self._started_at: dict[int, float] = {}
        self._repaired_count = 0

    def on_agent_started(self, site: Site) -> None:
        """The agent has to subscribe again, and another node may have its id."""
        self._started_at[site.place] = self.world.now
        self._mark_shared_id(site)
        if site.state.restored_at == self.world.now:
            self._record_roll_back(site)
        self._update_separations()

    def _record_roll_back(self, site: Site) -> None:
        """Earlier publications are uncertain, and packet ids of the newer state are used again."""
        node = site.state.id
        self._uncertain_until[node] = max(self.world.now, self._uncertain_until.get(node, 0.0))
        self._rolled_back[node] = self._rolled_back.get(node, 0) + site.broker.unreleased_count

    def on_agent_stopped(self, site: Site) -> None:
        """If it was one of two with the same id, the other may now be alone."""
        self._mark_shared_id(site)
        self._update_separations()

    def on_disturbance(self, description: str, is_fault: bool, places: tuple[int, ...]) -> None:
        """Reachability may have changed."""
        self._disturbed_at = self.world.now
        if is_fault:
            self._update_separations()

    def _update_separations(self) -> None:
        if self._can_leases_expire:
            self._separations.update()

    def _mark_shared_id(self, site: Site) -> None:
        """While two nodes have one id, and until they have resolved the conflict, nothing is
        guaranteed to or by either: each has received or published what the other does not know. In
        two components that never meet, this is permanent."""
        same_id_sites = [each for each in self.world.sites if each.state.id == site.state.id]
        if len(same_id_sites) > 1:
            running = sum(each.node is not None for each in same_id_sites)
            end = self.world.now + self._convergence_limit_s if running < 2 else inf
            self._uncertain_until[site.state.id] = end
            self._shared_ids.add(site.state.id)

    def _is_uncertain(self, at: float, *nodes: NodeId) -> bool:
        """Whether publications of that time, by or to one of these nodes, may be affected."""
        return any(at <= self._uncertain_until.get(node, -1.0) for node in nodes)

    def on_notification(self, site: Site, notification: object) -> None:
        """An origin that detects a copied journal has no obligations from before. After a roll-back
        that covers everything published since, detected or not. A compromised receiver can pretend
        that a journal is a copy: then nothing may be lost. Only the origins to which it lied may
        believe that."""
        if isinstance(notification, EpochRolloverRequired):
            self._rollover_at[site.state.id] = self.world.now
            if site.state.id not in self._uncertain_until:
                if not self._is_misled(site.state.id):
                    self.report_violation(f"n{site.place} has lost part of its journal")
            elif site.state.id not in self._rolled_back:
                settled = self._uncertain_until[site.state.id]
                self._uncertain_until[site.state.id] = max(settled, self.world.now)
        elif isinstance(notification, Repaired):
            self._repaired_count += notification.count
        elif isinstance(notification, Gap):
            self._gap_count += 1
            self._check_gap(notification, origin=notification.origin, receiver=site.state.id)
        elif isinstance(notification, DeliveryAbandoned):
            self._check_gap(notification, origin=site.state.id, receiver=notification.node)

    def _check_gap(self, gap: Gap | DeliveryAbandoned, origin: NodeId, receiver: NodeId) -> None:
        """A gap is allowed only for retention or an ended lease, unless a state is uncertain."""
        sites = {site.state.id: site for site in self.world.honest_sites()}
        if origin not in sites or receiver not in sites:
            return
        if isinstance(gap, Gap) and gap.reason == "retention":
            is_excused = self._has_trimmed(origin, gap)
        else:
            is_lease = isinstance(gap, DeliveryAbandoned) or gap.reason == "end of lease"
            is_excused = is_lease and self._separations.exceeds_lease(origin, receiver)
        if is_excused:
            self._excused_gaps.setdefault((receiver, origin), []).append(gap)
        elif isinstance(gap, Gap) and gap.reason == "new epoch" and self._is_forced(origin):
            return  # a false report: the publications are in the new epoch, so they must arrive
        elif not {origin, receiver} & self._uncertain_until.keys():
            what = f"n{sites[receiver].place} misses publications of n{sites[origin].place}"
            self.report_violation(f"{what}, without a valid reason: {gap}")

    def _has_trimmed(self, origin: NodeId, gap: Gap) -> bool:
        """Whether retention has removed the end of a gap. A copy of a node has its id, too."""
        disks = [site.state.disk for site in self.world.sites if site.state.id == origin]
        return any((gap.epoch, gap.last) <= disk.trimmed_upto for disk in disks)

    def _is_forced(self, origin: NodeId) -> bool:
        """Whether a compromised receiver made an origin begin a new epoch."""
        return origin in self._rollover_at and self._is_misled(origin)

    def _is_misled(self, origin: NodeId) -> bool:
        """Whether a compromised receiver reported a false position to an origin. Without
        certificates it can do so in any name, to any origin."""
        members = self.world.compromised.values()
        if not self.world.options.certificates:
            return bool(members)
        return any(origin in member.misled_origins for member in members)

    def on_published(self, entry: LedgerEntry) -> None:
        """Record the receivers to which it is guaranteed."""
        site = self.world.sites[entry.place]
        if not entry.qos or self.world.options.disk is None or is_local_only(entry.topic):
            return
        is_shown = site.broker.is_agent_subscribed(entry.topic)
        in_force = _nodes_in_force(site, entry.topic) if is_shown else set()
        for other in self.world.honest_sites():
            if other is site or not other.broker.has_plain_subscriber(entry.topic):
                continue
            lapses = other.broker.lapse_count(entry.topic)
            is_reported = self.world.now >= other.interest_reported_at
            is_expected = site.state.id not in self._rolled_back and self._is_interest_confirmed(
                site, other, entry.topic, lapses, is_reported
            )  # a rolled-back node does not know what it acknowledged since
            is_expected = is_expected or self._must_have_converged(site, other)
            if is_expected and not is_shown:
                self._check_subscribed(site, other, entry)
            elif is_expected or (
                is_reported and other.state.id in in_force and _knows_newest_interest(site, other)
            ):
                ids = (site.state.id, other.state.id)
                self._obligations.append(DeliveryObligation(entry, *ids, other.place, lapses))

    def _is_interest_confirmed(
        self, site: Site, other: Site, topic: str, lapses: int, is_reported: bool
    ) -> bool:
        """Whether a node may rely on another, because that one acknowledged its interest and the
        interest lasted. Until an agent knows of a change by its clients, its acknowledged interest
        may belong to an ended subscription."""
        names = (site.state.id, other.state.id, topic)
        is_of_copy = other.state.id in self._shared_ids and other.state.id not in _nodes_in_force(
            site, topic
        )  # the interest in force is that of a copy, which this site met last
        if is_of_copy or self._separations.exceeds_lease(*names[:2]):
            self._confirmed_lapse_count.pop(names, None)
        elif (
            is_reported
            and other.node is not None
            and _has_confirmed_interest(other.node, site.state.id, topic)
            and self._was_acknowledged_here(site, other.state.id, topic)
        ):
            self._confirmed_lapse_count[names] = lapses
        return self._confirmed_lapse_count.get(names) == lapses

    def _was_acknowledged_here(self, site: Site, node: NodeId, topic: str) -> bool:
        """Whether an acknowledgement with the id of a site was made there. Of an id that two sites
        had, it may be the other's, and the two may never meet again."""
        return site.state.id not in self._shared_ids or node in _nodes_in_force(site, topic)

    def _must_have_converged(self, site: Site, other: Site) -> bool:
        """Whether the interest of both must be in force, acknowledged or not."""
        if self.world.now <= self._disturbed_at + self._convergence_limit_s:
            return False
        part = self._tracker.truth.component_of(site)
        return part is not None and other in part.sites

    def _check_subscribed(self, site: Site, other: Site, entry: LedgerEntry) -> None:
        """Report an agent that is not subscribed to a topic that another node relies on. In a new
        session it has no subscription until its disk has stored them."""
        broker, disk = site.broker, site.state.disk
        since = max(
            broker.session_lost_at,
            broker.refuses_until,
            self._started_at.get(site.place, 0.0),
        )
        if not broker.granted:
            since = max(since, inf if disk.has_failed else disk.stalled_until)
        doubtful = self._is_uncertain(entry.at, site.state.id, other.state.id)
        if site.is_active and self.world.now > since + RESUBSCRIBE_LIMIT_S and not doubtful:
            what = f"what n{other.place} counts on"
            self.report_violation(f"n{site.place} is not subscribed to {entry.topic}, {what}")

    def on_delivered(self, site: Site, publication: Publication, entry: LedgerEntry | None) -> None:
        """Check for duplicates and reordering."""
        if publication.qos == 0 or entry is None or self.world.options.disk is None:
            return
        if not self.world.is_honest(publication.origin):
            return
        seen = self._first_connection.get((site.place, entry.number))
        self._first_connection[site.place, entry.number] = (
            site.broker.connection_count,
            site.broker.session_lost_at,
        )
        if self._is_uncertain(entry.at, site.state.id, publication.origin):
            return
        if seen is not None:
            is_rolled_over = entry.at <= self._rollover_at.get(publication.origin, -1.0)
            if not is_rolled_over and not self._was_captured_again(entry):
                self._check_repeat(site, entry, *seen)
            return  # otherwise it may have arrived in both epochs, or from both positions
        stream = (site.place, site.state.id, publication.origin, publication.qos)
        newest = self._newest_delivered.get(stream, -1)
        if (
            entry.number <= newest
            and not entry.was_passed_over
            and not self._was_refused_after_roll_back(site, entry)
        ):
            self.report_violation(
                f"n{site.place} delivers publication {entry.number} after {newest}"
            )
        self._newest_delivered[stream] = max(newest, entry.number)

    def _was_refused_after_roll_back(self, site: Site, entry: LedgerEntry) -> bool:
        """Whether a broker refused a publication for its quota, because it still has handshakes of
        the newer state, which the agent does not know. Later publications overtake it."""
        return site.state.id in self._rolled_back and entry.number in site.broker.refused_numbers

    def _check_repeat(
        self, site: Site, entry: LedgerEntry, connections: int, lost_at: float
    ) -> None:
        """Report a duplicate without a reason, or too many for the reason."""
        broker, disk = site.broker, self.world.options.disk
        assert disk is not None
        excused = (
            broker.session_lost_at > lost_at
            if entry.qos == 2
            else broker.connection_count > connections
        )
        connection = (site.place, broker.connection_count)
        self._repeat_counts[connection] = self._repeat_counts.get(connection, 0) + 1
        if not excused:
            self.report_violation(f"n{site.place} delivers publication {entry.number} again")
        elif self._repeat_counts[connection] > disk.in_flight_max:
            self.report_violation(
                f"n{site.place} delivers more than {disk.in_flight_max} publications again"
            )

    def on_run_finished(self) -> None:
        """Check that all guaranteed publications have arrived where they are still due, and that
        each publication has exactly one journal position."""
        for site in self.world.honest_sites():
            self._check_captured_once(site)
        for obligation in self._missing():
            entry = obligation.entry
            what = f"publication {entry.number} on {entry.topic} at {entry.at:.3f} s"
            self.report_violation(f"{what} from n{entry.place} never reached n{obligation.place}")

    def is_missing_publications(self) -> bool:
        """Whether a guaranteed publication has not arrived yet."""
        return next(self._missing(), None) is not None

    def _missing(self) -> Iterator[DeliveryObligation]:
        swallowed = dict(self._rolled_back)
        for obligation in self._obligations:
            if (
                obligation.is_delivered
                or not self._is_required(obligation)
                or self._is_reported(obligation)
            ):
                continue
            if obligation.entry.qos == 2 and swallowed.get(obligation.receiver):
                swallowed[obligation.receiver] -= 1
                continue
            yield obligation

    def _check_captured_once(self, site: Site) -> None:
        """Report publications with two positions, except some that stops may have caused."""
        counts = _capture_counts(site)
        again = [self.world.ledger.entries[each] for each in counts if counts[each] > 1]
        in_flight_max = self.world.options.disk.in_flight_max if self.world.options.disk else 0
        stop_count = site.process_run // 2
        most = inf if site.state.id in self._rolled_back else in_flight_max * stop_count
        if len(again) > most or not all(map(self._can_be_captured_again, again)):
            self.report_violation(f"n{site.place} has captured a publication twice")

    def _can_be_captured_again(self, entry: LedgerEntry) -> bool:
        """Whether several filters match. At QoS 2 that excuses only a node whose broker may have
        subscriptions of a newer state, with identifiers that the node uses for other filters."""
        site = self.world.sites[entry.place]
        if entry.qos == 2 and site.state.id not in self._rolled_back:
            return False
        return sum(matches(name, entry.topic) for name in site.broker.granted) > 1

    def _was_captured_again(self, entry: LedgerEntry) -> bool:
        """Whether a publication has two positions; `_check_captured_once` bounds their number."""
        counts = _capture_counts(self.world.sites[entry.place])
        return self._can_be_captured_again(entry) and counts[entry.number] > 1

    def summarize(self) -> GuaranteeSummary:
        """Count guaranteed publications and their outcomes."""
        held = [obligation for obligation in self._obligations if self._is_required(obligation)]
        missing = [obligation for obligation in held if not obligation.is_delivered]
        return GuaranteeSummary(
            promised=len(held),
            delivered=len(held) - len(missing),
            reported=sum(self._is_reported(obligation) for obligation in missing),
            uncaptured=sum(not obligation.entry.is_captured for obligation in self._obligations),
            gaps=self._gap_count,
            repaired=self._repaired_count,
        )

    def _is_required(self, obligation: DeliveryObligation) -> bool:
        """Whether the preconditions held to the end. If a lease ended before the origin's agent
        received the publication, the origin has no obligation to that node."""
        origin = self.world.sites[obligation.entry.place]
        receiver = self.world.sites[obligation.place]
        ids = (origin.state.id, receiver.state.id)
        part = self._tracker.truth.component_of(origin)
        return (
            obligation.entry.is_captured
            and ids == (obligation.origin, obligation.receiver)
            and not self._is_uncertain(obligation.entry.at, *ids)
            and (obligation.is_delivered or not self._may_wait_for_epoch(obligation.origin))
            and (
                obligation.receiver in obligation.entry.receivers
                or not self._separations.exceeded_lease_since(*ids, obligation.entry.at)
            )
            and receiver.broker.lapse_count(obligation.entry.topic) == obligation.lapse_count
            and part is not None
            and receiver in part.sites
        )

    def _may_wait_for_epoch(self, origin: NodeId) -> bool:
        """Whether an origin may still need a new epoch, because a copy of it began one, and has to
        wait for that after its own (7.8). Until then receivers refuse its publications."""
        pause_s = ROLLOVER_PAUSE_S + self._convergence_limit_s
        began = self._rollover_at.get(origin, -pause_s)
        return origin in self._shared_ids and self.world.now < began + pause_s

    def _is_reported(self, obligation: DeliveryObligation) -> bool:
        """Whether receiver or origin reported, with a valid reason, that it will never arrive. If
        retention removes publications from an old copy of a journal, only the origin can report
        them, because the receiver may have had other ones at these positions."""
        epoch, sequence = obligation.entry.journal_position
        disk = self.world.sites[obligation.entry.place].state.disk
        if obligation.origin in self._rolled_back and disk.has_removed_unacknowledged(
            obligation.receiver, epoch, sequence
        ):
            return True
        gaps = self._excused_gaps.get((obligation.receiver, obligation.origin), ())
        if any(gap.epoch == epoch and gap.first <= sequence <= gap.last for gap in gaps):
            return True
        is_renumbered = (
            self._is_forced(obligation.origin)
            and obligation.entry.at <= self._rollover_at[obligation.origin]
        )
        return is_renumbered and self._is_reported_in_new_epoch(obligation, epoch, gaps)

    def _is_reported_in_new_epoch(
        self, obligation: DeliveryObligation, epoch: int, gaps: Iterable[Gap | DeliveryAbandoned]
    ) -> bool:
        """Whether a gap of a later epoch covers a publication, which has another position there. If
        the journal of the origin does not hold it any more, the position is unknown."""
        later = [gap for gap in gaps if gap.epoch > epoch]
        positions = [
            record.sequence
            for record in self.world.sites[obligation.entry.place].state.disk.journal
            if ledger_number(record.payload) == obligation.entry.number
        ]
        if not positions:
            return bool(later)
        return any(gap.first <= each <= gap.last for gap in later for each in positions)


def _capture_counts(site: Site) -> Counter[int]:
    """Return how often each publication, by number, is in the journal of a site."""
    return Counter(ledger_number(each.payload) for each in site.state.disk.journal)


def _has_confirmed_interest(receiver: Node, origin: NodeId, topic: str) -> bool:
    """Whether a node knows that its newest interest, this topic included, is in force at
    another."""
    return origin in receiver.interest_acks() and _is_topic_covered(
        receiver.membership.records_of(receiver.id), topic
    )


def _nodes_in_force(site: Site, topic: str) -> set[NodeId]:
    """The nodes whose interest is in force at the publisher; for a stopped agent those on its disk,
    because its broker queues publications."""
    if site.node is not None:
        return set(site.node.receivers_in_force(topic))
    known = site.state.disk.records.items()
    return {node for node, records in known if _is_topic_covered(records, topic)}


def _knows_newest_interest(site: Site, other: Site) -> bool:
    """Whether the publisher has the newest interest of a node; an older one may belong to a
    subscription that has ended, of which the publisher learns before it gets the publication."""
    if other.node is None:
        return True
    known = (
        site.state.disk.records.get(other.state.id, ())
        if site.node is None
        else site.node.membership.records_of(other.state.id)
    )
    return _interest_stamps(known) == _interest_stamps(
        other.node.membership.records_of(other.state.id)
    )


def _interest_stamps(records: Iterable[Record]) -> set[Stamp]:
    return {
        (record.incarnation, record.version)
        for record in records
        if isinstance(record, InterestRecord)
    }


def _is_topic_covered(records: Iterable[Record], topic: str) -> bool:
    """Whether a node's known filters match a topic."""
    return any(
        split_share(name)[0] is None and matches(name, topic)
        for record in records
        if isinstance(record, InterestRecord)
        for name in record.added
    )
