"""Hypothesis strategies for frames that a correct node could have sent."""

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from hansa.protocol.membership import records
from hansa.protocol.membership.records import RecordKind
from hansa.protocol.model import HOPS_MAX, KEY_BYTES, MAC_BYTES, MANAGEMENT_GROUP, Publication
from hansa.protocol.topics import is_filter
from hansa.protocol.wire import frames
from hansa.protocol.wire.bounds import KEY_ID_MAX
from hansa.protocol.wire.codec import encode

FEW = 4
"""Items in a list: enough for every relevant order and repetition, small enough to be quick."""

u64 = st.integers(0, (1 << 64) - 1)
characters = st.characters(exclude_categories=["Cs"])
texts = st.text(characters, max_size=20)
keys = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)

# ---------------------------------------------------------------- topics

_levels = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=5)

topic_names = st.lists(_levels, min_size=1, max_size=FEW).map("/".join).filter(bool)

_plain = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(_levels | st.just("+"), max_size=FEW),
    st.sampled_from([(), ("#",)]),
)
_shared = st.builds("$share/{}/{}".format, st.sampled_from(["g", "workers"]), _plain)

filters = (_plain | _shared).filter(is_filter)
groups = filters | st.just(MANAGEMENT_GROUP)


def several(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=FEW).map(tuple)


def distinct(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=FEW, unique=True).map(tuple)


def by_node(values: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Pairs of a node and a value, ordered by the node."""
    return st.dictionaries(u64, values, max_size=FEW).map(lambda row: tuple(sorted(row.items())))


# ---------------------------------------------------------------- records


def changes(make: Any, names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """A change of a set: from one version to a later one."""
    versions = st.lists(u64, min_size=2, max_size=2, unique=True).map(sorted)
    return st.builds(
        lambda node, incarnation, versions, added, removed: make(
            node, incarnation, versions[1], versions[0], added, removed
        ),
        *(u64, u64, versions, distinct(names), distinct(names)),
    )


def wholes(make: Any, names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """A whole set, or one part of it."""
    places = st.lists(st.integers(0, 1_000), min_size=2, max_size=2, unique=True).map(sorted)
    return st.builds(
        lambda node, incarnation, version, added, place: make(
            node, incarnation, version, version, added, (), *(place if added else (0, 1))
        ),
        *(u64, u64, u64, distinct(names), places),
    )


def sets(make: Any, names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return changes(make, names) | wholes(make, names)


interest_records = sets(records.InterestRecord, filters)
claims_records = sets(records.ClaimsRecord, groups)
node_records = st.builds(
    records.NodeRecord,
    node=u64,
    incarnation=u64,
    version=u64,
    first_incarnation=u64,
    key=keys,
    name=texts,
    addresses=several(texts),
    capacity=st.floats(0, allow_nan=False, allow_infinity=False),
    links=by_node(u64),
    exchange_key=keys | st.just(b""),
)
any_record = node_records | interest_records | claims_records

# ---------------------------------------------------------------- frames

kinds = st.sampled_from(RecordKind)
hops = st.integers(0, HOPS_MAX)

unproven_publications = st.builds(
    Publication,
    origin=u64,
    epoch=u64,
    sequence=u64,
    qos=st.integers(0, 2),
    topic=topic_names,
    payload=st.binary(max_size=100),
    retain=st.booleans(),
    hops=hops,
    target_groups=several(u64),
    receivers=several(st.tuples(u64, u64)),
    properties=st.binary(max_size=20),
    version=st.just(0) | u64,
)


def _with_macs(publication: Publication, is_proven: bool) -> Publication:
    count = len(publication.receivers) if is_proven and publication.qos else 0
    return replace(publication, macs=bytes(number % 256 for number in range(MAC_BYTES * count)))


publications = st.builds(_with_macs, unproven_publications, st.booleans())

versions = st.tuples(topic_names, u64)
sealed_fields = (u64, u64, st.integers(0, KEY_ID_MAX), u64, st.binary(max_size=100), hops)
spans = st.lists(u64, min_size=2, max_size=2).map(sorted)

ordered: dict[type, st.SearchStrategy[Any]] = {
    frames.Hello: st.builds(
        frames.Hello,
        version=u64,
        federation=texts,
        node=u64,
        key=keys,
        incarnation=u64,
        name=texts,
        shared_settings=texts,
        digest=u64,
        capabilities=several(texts),
    ),
    frames.PendingNotice: st.builds(frames.PendingNotice, u64, u64, u64, u64, hops),
    frames.Receipt: st.builds(frames.Receipt, u64, u64, u64, u64, u64, u64, hops),
    frames.RepairResponse: st.builds(
        lambda to, node, epoch, span, lost, items, hops, more, safe: frames.RepairResponse(
            to, node, epoch, span[0], span[1], lost, tuple(map(encode, items)), hops, more, safe
        ),
        *(u64, u64, u64, spans, u64, several(publications), hops, st.booleans(), u64),
    ),
    frames.RetainedDigests: st.builds(
        frames.RetainedDigests,
        u64,
        u64,
        st.lists(u64, min_size=frames.RETAINED_BUCKETS, max_size=frames.RETAINED_BUCKETS).map(
            tuple
        ),
        hops,
    ),
    frames.RetainedRequest: st.builds(
        frames.RetainedRequest,
        u64,
        u64,
        several(st.integers(0, frames.RETAINED_BUCKETS - 1)),
        several(versions),
        hops,
    ),
    frames.RetainedVersions: st.builds(frames.RetainedVersions, u64, u64, several(versions), hops),
    frames.RetainedValuesFrame: st.builds(
        frames.RetainedValuesFrame, u64, u64, several(publications.map(encode)), hops
    ),
    frames.Query: st.builds(frames.Query, u64, u64, u64, st.binary(max_size=64), hops),
    frames.QueryResponse: st.builds(
        frames.QueryResponse, u64, u64, u64, st.binary(max_size=64), hops
    ),
    frames.Goodbye: st.builds(frames.Goodbye, texts),
    frames.Summary: st.builds(frames.Summary, several(st.tuples(kinds, u64, u64, u64))),
    frames.Update: st.builds(frames.Update, several(any_record)),
    frames.Fetch: st.builds(frames.Fetch, several(st.tuples(kinds, u64))),
    frames.CoreAnnouncement: st.builds(
        frames.CoreAnnouncement,
        core=u64,
        incarnation=u64,
        sequence=u64,
        distance=st.integers(0, frames.UNREACHABLE),
        parents=several(u64),
        claims=st.none() | claims_records,
        members=several(u64),
    ),
    frames.MeshMembership: st.builds(
        frames.MeshMembership,
        core=u64,
        sequence=u64,
        joined=distinct(groups),
        left=distinct(groups),
    ),
    frames.AnnouncementRequest: st.builds(frames.AnnouncementRequest, u64, u64, u64, hops),
    frames.InterestAcks: st.builds(
        frames.InterestAcks,
        several(
            st.builds(
                *(frames.InterestAck, u64, u64, u64, u64, u64, u64, hops),
                mac=st.binary(max_size=MAC_BYTES),
            )
        ),
    ),
    frames.SealedUnicast: st.builds(frames.SealedUnicast, *sealed_fields),
    frames.SealedBulk: st.builds(frames.SealedBulk, *sealed_fields),
    frames.InterestAckRequest: st.builds(frames.InterestAckRequest, u64, u64, hops, u64, u64),
}

every_frame: dict[type, st.SearchStrategy[Any]] = ordered | {
    Publication: publications,
    frames.Heartbeat: st.builds(frames.Heartbeat, u64, u64, u64, u64),
    frames.FrameAck: st.builds(frames.FrameAck, u64, several(u64)),
    frames.SequencedFrame: st.builds(frames.SequencedFrame, u64, st.one_of(*ordered.values())),
}

any_frame = st.one_of(*every_frame.values())
