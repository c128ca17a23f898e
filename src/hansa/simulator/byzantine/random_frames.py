"""Random well-formed frames about nodes, groups, epochs and topics that exist in the run."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from hansa.protocol.membership.records import (
    ClaimsRecord,
    InterestRecord,
    NodeRecord,
    Record,
    RecordKind,
)
from hansa.protocol.model import HOPS_MAX, KEY_BYTES, NodeId, Publication, group_id
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    RETAINED_BUCKETS,
    UNREACHABLE,
    AnnouncementRequest,
    AnyFrame,
    CoreAnnouncement,
    Fetch,
    Heartbeat,
    InterestAck,
    InterestAckRequest,
    InterestAcks,
    MeshMembership,
    PendingNotice,
    Receipt,
    RepairResponse,
    RetainedDigests,
    RetainedRequest,
    RetainedValuesFrame,
    RetainedVersions,
    Summary,
    Update,
)
from hansa.simulator.byzantine.attacker import Attacker

T = TypeVar("T")

LARGEST = (1 << 64) - 1
FEW = 3
NAMES = ("#", "plant/#", "a/b", "$SYS/#", "$share/g/a/b")
TOPICS = ("plant/temp", "a/b", "$SYS/uptime")


def random_frames(attacker: Attacker, count: int) -> Iterator[AnyFrame | Publication]:
    """Return so many frames; the numbers of the attacker decide them."""
    sampler = _FrameSampler(attacker)
    for _ in range(count):
        yield sampler.frame()


class _FrameSampler:
    """Draws frames from what a compromised member has seen."""

    def __init__(self, attacker: Attacker) -> None:
        corpus = attacker.corpus
        self._rng: random.Random = attacker.rng
        self._attacker = attacker
        self._nodes = [NodeId(0), attacker.id, *attacker.victims(), NodeId(LARGEST)]
        self._names = [*corpus.names, *NAMES]
        self._topics = [*corpus.topics, *TOPICS]
        stamps = [n for r in corpus.records for n in (r.incarnation, r.version)]
        positions = [n for p in corpus.publications for n in (p.epoch, p.sequence)]
        self._numbers = [0, 1, attacker.wall_ms, LARGEST, *stamps[-100:], *positions[-100:]]
        self._makers: list[Callable[[], AnyFrame | Publication]] = [
            self._update,
            self._update,
            self._publication,
            self._publication,
            self._announcement,
            self._unicast,
            self._unicast,
            self._unicast,
            self._interest_acks,
            self._request,
        ]

    def frame(self) -> AnyFrame | Publication:
        return self._rng.choice(self._makers)()

    # ------------------------------------------------------------ values

    def _node(self) -> NodeId:
        return self._rng.choice(self._nodes)

    def _number(self) -> int:
        number = self._rng.choice(self._numbers) + self._rng.choice((0, 0, 0, 1, -1, 10))
        return min(max(0, number), LARGEST)

    def _some(self, items: Sequence[T]) -> tuple[T, ...]:
        return tuple(dict.fromkeys(self._rng.choices(items, k=self._rng.randint(0, FEW))))

    def _hops(self) -> int:
        return self._rng.choice((0, 0, 1, HOPS_MAX))

    # ------------------------------------------------------------ records

    def _update(self) -> Update:
        return Update(tuple(self._record() for _ in range(self._rng.randint(1, FEW))))

    def _record(self) -> Record:
        node = self._node()
        if self._rng.random() < 0.4:
            record = self._node_record(node)
        else:
            record = self._set(node, self._rng.choice((InterestRecord, ClaimsRecord)))
        is_signed = self._rng.random() < 0.7
        return self._attacker.forgery.sign(record) if is_signed else record

    def _node_record(self, node: NodeId) -> Record:
        known = self._attacker.corpus.node_record(node)
        links = sorted({other: self._rng.randrange(10_000) for other in self._some(self._nodes)})
        return NodeRecord(
            node,
            self._number(),
            self._number(),
            self._number(),
            known.key if known else self._rng.randbytes(KEY_BYTES),
            "",
            (),
            self._rng.choice((0.0, 1.0, 9.0)),
            tuple((other, 1_000) for other in links),
        )

    def _set(self, node: NodeId, make: type[InterestRecord] | type[ClaimsRecord]) -> Record:
        base, version = sorted((self._number(), self._number()))
        removed = self._some(self._names) if base < version else ()
        return make(node, self._number(), version, base, self._some(self._names), removed)

    # ------------------------------------------------------------ frames

    def _publication(self) -> Publication:
        seen = self._attacker.corpus.publications
        origin = self._node()
        if seen and self._rng.random() < 0.5:
            origin = self._rng.choice(seen).origin
        return Publication(
            origin,
            self._number(),
            self._number(),
            self._rng.randrange(3),
            self._rng.choice(self._topics),
            self._attacker.new_payload(),
            retain=self._rng.random() < 0.2,
            hops=self._hops(),
            target_groups=tuple(map(group_id, self._some(self._names))),
            receivers=tuple((node, self._number()) for node in self._some(self._nodes)),
            version=self._number() if self._rng.random() < 0.2 else 0,
        )

    def _announcement(self) -> AnyFrame:
        if self._rng.random() < 0.3:
            return MeshMembership(
                self._node(), self._number(), self._some(self._names), self._some(self._names)
            )
        claims = self._set(self._node(), ClaimsRecord) if self._rng.random() < 0.3 else None
        assert claims is None or isinstance(claims, ClaimsRecord)
        return CoreAnnouncement(
            self._node(),
            self._number(),
            self._number(),
            self._rng.choice((0, 1, 2, UNREACHABLE - 1, UNREACHABLE)),
            self._some(self._nodes),
            claims,
        )

    def _unicast(self) -> AnyFrame:
        to, source, hops = self._node(), self._node(), self._hops()
        number = self._number
        after, upto = sorted((number(), number()))
        items = tuple(encode(self._publication()) for _ in range(self._rng.randint(0, 2)))
        versions = tuple((topic, number()) for topic in self._some(self._topics))
        buckets = tuple(range(self._rng.randint(0, FEW)))
        return self._rng.choice(
            (
                PendingNotice(to, source, number(), number(), hops),
                Receipt(to, source, number(), number(), number(), number() % 100_000, hops),
                RepairResponse(to, source, number(), after, upto, number(), items, hops),
                RetainedDigests(to, source, tuple(range(RETAINED_BUCKETS)), hops),
                RetainedRequest(to, source, buckets, versions, hops),
                RetainedVersions(to, source, versions, hops),
                RetainedValuesFrame(to, source, items, hops),
            )
        )

    def _interest_acks(self) -> AnyFrame:
        number = self._number
        entries = [
            InterestAck(
                self._node(), number(), number(), self._node(), number(), number(), self._hops()
            )
            for _ in range(self._rng.randint(1, FEW))
        ]
        return InterestAcks(tuple(entries))

    def _request(self) -> AnyFrame:
        number = self._number
        kinds = list(RecordKind)
        rows = [(self._rng.choice(kinds), self._node()) for _ in range(FEW)]
        return self._rng.choice(
            (
                Summary(tuple((kind, node, number(), number()) for kind, node in rows)),
                Fetch(tuple(rows)),
                AnnouncementRequest(self._node(), number(), number(), self._hops()),
                InterestAckRequest(self._node(), self._node(), self._hops(), number(), number()),
                Heartbeat(number(), number(), number(), number()),
            )
        )
