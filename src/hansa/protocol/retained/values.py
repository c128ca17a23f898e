"""Retained values: all brokers with interest in a topic end up with the same value.

A retained publication carries a *version* from a hybrid logical clock, so the later of two has the
greater version; the greater node id breaks ties. A node knows the versions of topics that other
nodes or its own clients are interested in, and lets its broker store only newer values. A deletion
is a value as well, and is remembered for the lease, so that deleted values do not come back.

The *owner* of a value is the node whose client published it. It sends digests of its values
(`RetainedDigests`) to interested nodes that become reachable or newly interested. Where these
differ, the other node requests the versions (`RetainedRequest`, `RetainedVersions`) and then the
values it lacks (`RetainedRequest`, `RetainedValuesFrame`).

The shell reads the values that the broker actually holds (`ListRetained`): when other nodes become
interested in a filter, for earlier values; when a client and another node wrote one topic
concurrently, for the final value; and before a value without local interest is cleared. The node
also verifies that its broker stores the expected values (`checks`): topics with disturbed
handshakes or a changed QoS, a sample of recently written ones, and all values of other nodes after
each connection of the shell to the broker.
"""

import math
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from hansa.errors import InvalidFrame
from hansa.protocol.clock import WallClock
from hansa.protocol.deadlines import DeadlineTable
from hansa.protocol.effects import (
    Effect,
    Ignored,
    ListRetained,
    PersistRetained,
    PublishRetained,
    ReadRetained,
)
from hansa.protocol.events import RetainedListed, RetainedRead
from hansa.protocol.forwarding.numbering import LocalPublication
from hansa.protocol.membership.rights import OUTSIDE_CERTIFICATE, UNLIMITED, Rights
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.checks import RECENT, Checks, FullComparison
from hansa.protocol.retained.clock import HybridClock
from hansa.protocol.retained.digest import RetainedEntry, bucket_digests, payload_digest
from hansa.protocol.retained.sync import (
    SLICE_TOPICS,
    RetainedSync,
    split_topics,
    value_frames,
    version_frames,
)
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import FilterTrie, split_share
from hansa.protocol.wire.codec import decode_publication
from hansa.protocol.wire.frames import (
    RetainedDigests,
    RetainedRequest,
    RetainedValuesFrame,
    RetainedVersions,
    Unicast,
)

OLDEST_VERSION = 1
"""The version of values stored before any listing: older than any live publication."""

TOPICS_PER_REQUEST_MAX = 100
"""Topics in one request."""

REPAIRS_MAX = 3
"""How often a value that the broker does not store is published again, until it changes."""

RetainedOutput = list[Effect | Unicast]


class RetainedState:
    """The newest values of all topics that concern one node."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        has_plain_subscriber: Callable[[str], bool],
        receivers: Callable[[str], tuple[NodeId, ...]],
        known: Mapping[str, RetainedEntry],
        clock: WallClock,
    ) -> None:
        """`known` is the state from disk; `has_plain_subscriber` says whether a local client is
        interested in a topic, `receivers` which other nodes are."""
        self.rights_of: Callable[[NodeId], Rights] = lambda node: UNLIMITED
        """What a node may publish and receive."""
        self._node = node
        self._settings = settings
        self._has_plain_subscriber = has_plain_subscriber
        self._receivers = receivers
        self.entries = dict(known)
        greatest = max((value.version for value in known.values()), default=0)
        self._clock = HybridClock(greatest, clock)
        self._is_new = True  # no input was handled yet
        self._checks = Checks(settings.retained_check_delay)
        self._checks_due: DeadlineTable[str] = DeadlineTable()  # when to list the broker's values
        self._full = FullComparison(settings.retained_check_delay)
        self._concurrent_writes = {
            topic: False for topic, value in known.items() if value.owner != node
        }
        """Topics whose value at the broker may not be the newest delivered one, because writes were
        lost or reordered; with whether a local client wrote one of them. Writes of an earlier run
        are included until they were compared once."""
        self._repairs: dict[str, tuple[int, int]] = {}
        """Versions that the broker did not store, and how often each was published again."""
        self._sync = RetainedSync(node, self.entries, receivers)
        self._unconfirmed: DeadlineTable[str] = (
            DeadlineTable()
        )  # when to announce versions whose copies may be lost
        self._implausible_count = 0
        self._leftover_check_at = math.inf
        self._persist_at = math.inf

    # ------------------------------------------------------------ versions

    def set_now(self, now: float) -> None:
        """An input is handled; at the first one, schedule a check of values left by an earlier
        incarnation."""
        self._clock.clock.set_now(now)
        if self._is_new:
            self._is_new = False
            if self.entries:
                self._leftover_check_at = now + RECENT * self._settings.retained_check_delay

    @property
    def _now(self) -> float:
        return self._clock.clock.now

    def _is_newer(self, topic: str, value: RetainedEntry) -> bool:
        known = self.entries.get(topic)
        return known is None or (value.version, value.owner) > (known.version, known.owner)

    def _set_entry(self, topic: str, value: RetainedEntry, qos: int = 0, size: int = 0) -> bool:
        """Store a value; return whether there was room."""
        self._clock.observe(value.version)
        before = self.entries.get(topic)
        if before is None and len(self.entries) >= self._settings.retained_max:
            return False
        self.entries[topic] = value
        self._sync.has_owned |= value.owner == self._node
        self._checks.record_write(topic, self._now, qos, size, before.digest if before else None)
        self._schedule_persist()
        return True

    def _remove_entry(self, topic: str) -> None:
        del self.entries[topic]
        self._concurrent_writes.pop(topic, None)
        self._schedule_persist()

    def _schedule_persist(self) -> None:
        self._persist_at = min(self._persist_at, self._now + self._settings.retained_check_delay)

    def _is_stable(self, topic: str, times: float = 1) -> bool:
        return self._checks.is_settled(topic, self._now, times)

    # ------------------------------------------------------------ live publications

    def assign_version(self, event: LocalPublication) -> int:
        """A local client published a retained message: return its version."""
        known = self.entries.get(event.topic)
        if known is not None and not self._is_stable(event.topic, RECENT):
            if known.owner != self._node or self._checks.qos(event.topic) != event.qos:
                self._concurrent_writes[event.topic] = True
                self._schedule_check(event.topic)
        version = self._clock.next_version()
        value = RetainedEntry(version, self._node, payload_digest(event.payload))
        self._set_entry(event.topic, value, event.qos, len(event.payload))
        if not event.qos and event.topic not in self._unconfirmed:
            self._unconfirmed.schedule(event.topic, self._now + self._settings.retained_check_delay)
        return version

    def resolve_retain_flag(self, publication: Publication) -> Publication:
        """A retained publication of another node will be delivered: keep its retain flag only if it
        is the newest value."""
        if not publication.retain:
            return publication
        value = RetainedEntry(
            publication.version, publication.origin, payload_digest(publication.payload)
        )
        if self.entries.get(publication.topic) == value:
            return publication  # stored by an earlier incarnation that did not deliver it
        is_plausible = self._clock.is_plausible(value.version)
        self._implausible_count += not is_plausible
        is_subscribed = is_plausible and self._has_plain_subscriber(
            publication.topic
        )  # not only by a share
        if not is_subscribed or not self._is_newer(publication.topic, value):
            return replace(publication, retain=False)
        self._replace_entry(publication, value)
        return publication

    def _replace_entry(self, publication: Publication, value: RetainedEntry) -> None:
        """Another node's value is delivered. If its QoS differs from the previous one, a shell that
        does not keep the order of such writes may store them in another order."""
        topic, qos = publication.topic, publication.qos
        known = self.entries.get(topic)
        if known is not None and known.owner not in (self._node, value.owner):
            self._sync.schedule_correction(known.owner, value.owner, topic, value.version)
        if not self._is_stable(topic, RECENT) and self._checks.qos(topic) != qos:
            self._concurrent_writes.setdefault(topic, False)
            self._schedule_check(topic)
        self._set_entry(topic, value, qos, len(publication.payload))

    def _schedule_check(self, topic: str) -> None:
        self._checks_due.schedule(topic, self._now + self._settings.retained_check_delay)

    # ------------------------------------------------------------ interest

    def on_filters_granted(self, filters: Iterable[str]) -> list[Effect]:
        """Other nodes are interested in these filters now: list the broker's values."""
        found = tuple(filters)
        return [ListRetained(found)] if found else []

    def schedule_digest(self, node: NodeId) -> None:
        """A node became reachable, or its interest came into force: send it digests. All nodes may
        become reachable at once, so this must not depend on the number of values."""
        if self._sync.has_owned:
            self._sync.schedule_digest(node, self._now)

    def on_remote_interest_removed(self, filters: list[str]) -> None:
        """Other nodes lost interest, so this node sees no further writes. Known versions are kept,
        or old values would return when the interest does; beyond the bound they are forgotten."""
        is_much = len(self.entries) > self._settings.retained_max // 2
        for topic in self._topics_matching(filters) if is_much else ():
            if self.entries[topic].owner == self._node and not self._receivers(topic):
                self._remove_entry(topic)

    def on_local_interest_removed(self, filters: list[str]) -> None:
        """Local clients lost interest: clear values that were stored only for them."""
        self._schedule_leftover_checks(self._topics_matching(filters))

    def _schedule_leftover_checks(self, topics: Iterable[str]) -> None:
        for topic in filter(self._is_leftover, topics):
            self._schedule_check(topic)

    def _is_leftover(self, topic: str) -> bool:
        """Whether a value is another node's and has no local interest."""
        return self.entries[topic].owner != self._node and not self._has_plain_subscriber(topic)

    def _topics_matching(self, filters: Iterable[str]) -> list[str]:
        trie: FilterTrie[None] = FilterTrie()
        found: dict[str, None] = {}
        for name in filters:
            plain = split_share(name)[1]
            if "+" in plain or "#" in plain:
                trie.put(plain, None)
            elif plain in self.entries:
                found[plain] = None
        if len(trie):
            found.update(dict.fromkeys(topic for topic in self.entries if trie.match(topic)))
        return list(found)

    # ------------------------------------------------------------ values at the broker

    def mark_uncertain(self, topics: Iterable[str]) -> None:
        """The shell does not know whether the broker stores the newest values of these topics."""
        for topic in topics:
            if topic in self.entries:
                self._concurrent_writes.setdefault(topic, False)
                self._schedule_check(topic)

    def reconnected(self) -> None:
        """The shell has connected to the broker: writes may be lost, and the broker may have
        restored an older state. Check the latest writes, and then, in steps, all values of other
        nodes. For values of local clients the broker is authoritative."""
        self.mark_uncertain(self._checks.recent(self._now))
        others = [topic for topic, value in self.entries.items() if value.owner != self._node]
        for topic in others:
            self._concurrent_writes.setdefault(topic, False)
        self._full.begin(others, self._now)

    def on_retained_listed(self, event: RetainedListed) -> RetainedOutput:
        """The shell has listed the broker's values for some filters."""
        times = 1 + event.age / self._settings.retained_check_delay
        stored = dict(event.values)
        topics = dict.fromkeys((*self._topics_matching(event.filters), *stored))
        if times > RECENT:  # it may be unknown which have changed since
            self._full.begin_smaller(topics, self._now)
            return []
        self._full.end_in_time(len(topics))
        effects: RetainedOutput = []
        for topic in topics:
            if not self._is_stable(topic, times):
                self._schedule_check(topic)
                continue
            before = self.entries.get(topic)
            effects += self._reconcile(topic, stored.get(topic, b""))
            if topic in self.entries and self.entries[topic] != before:
                self._unconfirmed.schedule(topic, self._now)
        return self._merge_requests(effects)

    def _merge_requests(self, output: RetainedOutput) -> RetainedOutput:
        """Combine requests for single topics to the same owner."""
        topics_by_owner: dict[NodeId, list[tuple[str, int]]] = {}
        others: RetainedOutput = []
        for each in output:
            if isinstance(each, RetainedRequest):
                topics_by_owner.setdefault(each.destination, []).extend(each.topics)
            else:
                others.append(each)
        return [
            *others,
            *(
                request
                for to, topics in topics_by_owner.items()
                for request in self._make_requests(to, topics)
            ),
        ]

    def _reconcile(self, topic: str, found: bytes) -> RetainedOutput:
        """Make the known value of a topic agree with the broker's."""
        value, by_client = self.entries.get(topic), self._concurrent_writes.pop(topic, None)
        if value is None:
            has_room = self._set_entry(topic, RetainedEntry(OLDEST_VERSION, self._node, found))
            return [] if has_room else [Ignored("retained_max")]
        if value.digest == found and (value.version or self._is_leftover(topic)):
            self._repairs.pop(topic, None)
            return [*self._clear_at_broker(topic)] if self._is_leftover(topic) else []
        is_own = value.owner == self._node
        if by_client:  # before another node's arrived
            self._set_entry(topic, RetainedEntry(self._clock.next_version(), self._node, found))
        elif found and (is_own or not (by_client is False or self._is_stale(topic, found))):
            # Written unseen: later than the known value, and earlier than what other nodes have
            # published since.
            self._set_entry(topic, RetainedEntry(value.version + 1, self._node, found))
        elif is_own or not self._has_plain_subscriber(
            topic
        ):  # the broker has lost it: that is not a deletion
            self._remove_entry(topic)
        elif by_client is None and not found and value.digest:
            # Nothing disturbed the write, so the broker stored it: a local client has deleted it,
            # or it has expired. Storing it again would undo the client's deletion.
            return [Ignored("retained value missing at the broker")]
        else:
            return self._repair(topic, value, found)
        return []

    def _is_stale(self, topic: str, found: bytes) -> bool:
        """Whether the broker holds a replaced value, not one that a client wrote unseen."""
        return self._checks.is_former(topic, found, self._now) or not self.entries[topic].version

    def _repair(self, topic: str, value: RetainedEntry, found: bytes) -> RetainedOutput:
        """The broker holds an older value of another node, or none: publish it again, a few times
        at most, because it may have expired, or the broker may refuse it."""
        version, count = self._repairs.get(topic, (value.version, 0))
        count = count + 1 if version == value.version else 1
        if count > REPAIRS_MAX:
            return [Ignored("retained value not stored by the broker")]
        if len(self._repairs) >= self._settings.retained_max:
            self._repairs.clear()
        self._repairs[topic] = (value.version, count)
        if value.version and not value.digest:
            self._set_entry(topic, value, qos=1)
            deletion = Publication(value.owner, 0, 0, 1, topic, b"", True, version=value.version)
            return [PublishRetained(deletion)]
        if found:  # until the owner answers, this is the value here, and older than any other
            self._set_entry(topic, RetainedEntry(0, value.owner, found))
        else:
            self._remove_entry(topic)
        return [RetainedRequest(value.owner, self._node, (), ((topic, 0),))]

    def _clear_at_broker(self, topic: str) -> list[Effect]:
        value = self.entries[topic]
        self._remove_entry(topic)
        if not value.digest:
            return []
        deletion = Publication(value.owner, 0, 0, 0, topic, b"", retain=True, version=value.version)
        return [PublishRetained(deletion)]

    # ------------------------------------------------------------ unicast frames

    def receive_unicast(
        self, frame: RetainedDigests | RetainedRequest | RetainedVersions | RetainedValuesFrame
    ) -> RetainedOutput:
        match frame:
            case RetainedDigests(_, node, digests):
                ours = bucket_digests(self._owned_by(node))
                differing = [n for n, d in enumerate(digests) if d != ours[n]]
                return [RetainedRequest(node, self._node, tuple(differing))] if differing else []
            case RetainedRequest(_, node, buckets, topics):
                return [*self._list_versions(node, buckets), *self._answer_request(node, topics)]
            case RetainedVersions(_, node, entries):
                return [*self._request_newer(node, entries)]
            case _:
                return self._receive_values(frame)

    def _owned_by(self, node: NodeId) -> dict[str, RetainedEntry]:
        return {t: value for t, value in self.entries.items() if value.owner == node}

    def _list_versions(self, node: NodeId, buckets: tuple[int, ...]) -> list[Unicast]:
        if not buckets:
            return []
        self._sync.schedule_versions(node, buckets)
        return self._sync.process_next_slice(self._now)

    def _list_unconfirmed(self) -> list[Unicast]:
        """Send interested nodes the versions of values whose copies may be lost, some at a time."""
        entries: dict[NodeId, list[tuple[str, int]]] = {}
        for topic in self._unconfirmed.pop_due(self._now, SLICE_TOPICS):
            value = self.entries.get(topic)
            if value is not None and value.owner == self._node:
                for node in self._receivers(topic):
                    self._sync.schedule_digest_later(node, self._now)
                    entries.setdefault(node, []).append((topic, value.version))
        return [
            each
            for node, some in entries.items()
            for each in version_frames(node, self._node, some)
        ]

    def _request_newer(self, owner: NodeId, entries: Iterable[tuple[str, int]]) -> list[Unicast]:
        """Request values from an owner that are newer than the known ones, or differ from them;
        inform it of older ones, which its broker still holds."""
        lacking: list[tuple[str, int]] = []
        for topic, version in entries:
            known = self.entries.get(topic)
            if known is None:
                is_lacking = self._has_plain_subscriber(topic)
            elif known.owner == owner:
                is_lacking = known.version != version and self._has_plain_subscriber(topic)
            elif (version, owner) > (known.version, known.owner):
                is_lacking = known.owner == self._node or self._has_plain_subscriber(topic)
            else:
                is_lacking = False
                self._sync.schedule_correction(owner, known.owner, topic, known.version)
            if is_lacking and self._clock.is_plausible(version):
                lacking.append((topic, known.version if known else 0))
        return self._make_requests(owner, lacking)

    def _make_requests(self, owner: NodeId, topics: list[tuple[str, int]]) -> list[Unicast]:
        parts = split_topics(topics, TOPICS_PER_REQUEST_MAX)
        return [RetainedRequest(owner, self._node, (), part) for part in parts]

    def _answer_request(self, node: NodeId, topics: Iterable[tuple[str, int]]) -> RetainedOutput:
        """Send values of this node: deletions at once, others after they were read."""
        deleted: list[Publication] = []
        to_read: list[str] = []
        for topic, known in topics:
            value = self.entries.get(topic)
            if value is None or value.owner != self._node:
                continue
            if not self.rights_of(node).allows_receiving(topic):
                continue
            # known to an earlier incarnation
            if value.version < known and self._clock.is_plausible(known):
                self._clock.observe(known)
                value = replace(value, version=self._clock.next_version())
                self._set_entry(topic, value)
            if value.digest:
                to_read.append(topic)
            else:
                deleted.append(self._publication(topic, b"", 0, b"", value.version))
        output: RetainedOutput = [*self._value_frames(node, deleted)]
        return [*output, ReadRetained(node, tuple(to_read))] if to_read else output

    def on_retained_read(self, event: RetainedRead) -> list[Unicast]:
        """The shell has read requested values; values that changed meanwhile are sent anyway."""
        publications = [
            self._publication(v.topic, v.payload, v.qos, v.properties, known.version)
            for v in event.values
            if (known := self.entries.get(v.topic)) is not None
            and (known.owner, known.digest) == (self._node, payload_digest(v.payload))
        ]
        return self._value_frames(event.requester, publications)

    def _publication(
        self, topic: str, payload: bytes, qos: int, properties: bytes, version: int
    ) -> Publication:
        return Publication(
            self._node, 0, 0, qos, topic, payload, True, properties=properties, version=version
        )

    def _value_frames(self, to: NodeId, publications: list[Publication]) -> list[Unicast]:
        return value_frames(to, self._node, publications, self._settings.repair_bytes)

    def _receive_values(self, frame: RetainedValuesFrame) -> RetainedOutput:
        output: RetainedOutput = []
        for data in frame.publications:
            try:
                publication = decode_publication(data)
            except InvalidFrame:
                return [*output, Ignored("invalid retained value")]
            value = RetainedEntry(
                publication.version, frame.source, payload_digest(publication.payload)
            )
            known = self.entries.get(publication.topic)
            is_ours = known is not None and known.owner == self._node
            if not self.rights_of(frame.source).allows_publishing(publication.topic):
                output.append(Ignored(OUTSIDE_CERTIFICATE))
                continue
            is_kept = is_ours or self._has_plain_subscriber(publication.topic)
            if not is_kept or not self._clock.is_plausible(value.version):
                continue
            if not self._is_newer(publication.topic, value):
                continue
            self._replace_entry(publication, value)
            if value.digest or (known is not None and known.digest):
                output.append(PublishRetained(publication))
            elif known is None:  # the broker may hold what an earlier incarnation did not store
                self.mark_uncertain((publication.topic,))
        return output

    # ------------------------------------------------------------ time

    def handle_timer(self) -> RetainedOutput:
        """Do everything that is due."""
        now = self._now
        found = (*self._checks_due.pop_due(now), *self._checks.sample(now), *self._full.step(now))
        due = tuple(dict.fromkeys(found))
        output: RetainedOutput = [ListRetained(due)] if due else []
        output += self._list_unconfirmed()
        output += [Ignored("retained version ahead of the clock")] * self._implausible_count
        self._implausible_count = 0
        self._check_leftovers()
        output += self._sync.process_next_slice(now)
        if self._persist_at <= now:
            self._persist_at = math.inf
            self._remove_expired()
            output.append(PersistRetained())
        return output

    def _check_leftovers(self) -> None:
        """An earlier incarnation may have stopped before it cleared values without local
        interest."""
        if self._leftover_check_at <= self._now:
            self._leftover_check_at = math.inf
            self._schedule_leftover_checks(self.entries)

    def _remove_expired(self) -> None:
        """Forget deletions older than the lease, and settled writes."""
        oldest = self._clock.version_at(-self._settings.interest_lease)
        for topic, value in list(self.entries.items()):
            if not value.digest and value.version < oldest:
                del self.entries[topic]
                self._concurrent_writes.pop(topic, None)
        self._checks.forget_settled(self._now, self.entries)

    def next_deadline(self) -> float | None:
        """When `handle_timer` is due."""
        if self._sync.is_busy or self._implausible_count:
            return self._now
        due = min(
            self._leftover_check_at,
            self._persist_at,
            self._checks_due.next_due,
            self._unconfirmed.next_due,
            self._sync.next_due,
            self._checks.due,
            self._full.due,
        )
        return None if due == math.inf else due
