"""Bounds of control frames: every list, text and number from a peer is limited.

`codec` checks every frame in both directions. The bounds only protect and are well above what a
node sends; `settings` has the ones to tune. Where a node forwards records and claims of others, the
bounds leave room for what it adds, so every received record can be sent.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

from hansa.errors import InvalidFrame, InvalidTopic
from hansa.protocol.membership import records
from hansa.protocol.model import HOPS_MAX, KEY_BYTES, MAC_BYTES, MANAGEMENT_GROUP
from hansa.protocol.settings import LABEL_BYTES_MAX, NEIGHBOURS_MAX, NODES_MAX
from hansa.protocol.topics import check_filter, check_name
from hansa.protocol.wire import frames

ROWS_MAX = len(records.RecordKind) * NODES_MAX
"""Rows in a summary or fetch, records in an update. All rows of that many nodes fit one frame."""

NAMES_MAX = 1 << 17
"""Filters or groups in one list."""

NAMES_BYTES_MAX = 1 << 18
"""Bytes of the names in one record of a set; larger sets come in parts."""

PARTS_MAX = 1 << 14
"""Parts of a set; each has at least one name."""

FLAGS_MAX = 64
"""Membership flags in one announcement; they are hints."""

PARENTS_MAX = 64
"""Parents in an announcement; the settings allow 16."""

MISSING_MAX = 64
"""Missing frames in one acknowledgement."""

PUBLICATIONS_PER_FRAME_MAX = 1 << 14
"""Publications in one repair response or frame of retained values."""

TOPICS_MAX = 1 << 14
"""Topics of retained values in one frame."""

QUERY_BYTES_MAX = 4_096
"""Bytes of a query."""

QUERY_RESPONSE_BYTES_MAX = 60_000
"""Bytes of a response to a query: links send it in one piece."""

KEY_ID_MAX = (1 << 16) - 1
"""Greatest id of a pair of exchange keys."""

ADDRESSES_MAX = 16
"""Addresses of one node."""

CERTIFICATES_MAX = 4
CERTIFICATE_BYTES_MAX = 4_096
"""Certificates of one node, and bytes of one: more could not be sent during a TLS handshake."""

SIGNATURE_BYTES = 64

CAPABILITIES_MAX = 64
"""Capabilities in a hello."""

SHARED_SETTINGS_BYTES_MAX = 1_024
"""Bytes of the shared settings in a hello."""

REASON_BYTES_MAX = 4_096
"""Bytes of a goodbye's reason, which may quote both hellos."""

Rule = Callable[[Any], object]
"""Raises InvalidFrame or InvalidTopic if a value is out of bounds."""


def check_bounds(value: object) -> None:
    """Raise InvalidFrame with the path to the field if a frame or record is out of bounds."""
    bounds = _BOUNDS.get(type(value))
    if bounds is None:
        return
    field = ""
    try:
        for field, rule in bounds.fields.items():
            rule(getattr(value, field))
        field = ""
        bounds.whole(value)
    except (InvalidFrame, InvalidTopic) as error:
        owner = next(
            (getattr(value, name) for name in ("source", "node", "core") if hasattr(value, name)),
            None,
        )
        place = bounds.word if owner is None else f"{bounds.word} of {owner:016x}"
        raise InvalidFrame(": ".join(filter(None, (place, field, str(error))))) from None


# ---------------------------------------------------------------- rules


def at_most(value: int, limit: int, unit: str = "") -> None:
    """Raise InvalidFrame if a value is above its limit."""
    if value > limit:
        raise InvalidFrame(f"{value}{unit}, the limit is {limit}")


def _anything(_: object) -> None:
    pass


def _number(limit: int) -> Rule:
    return lambda value: at_most(value, limit)


def _text(bytes_max: int) -> Rule:
    return lambda text: at_most(len(text.encode()), bytes_max, " bytes")


def _data(bytes_max: int) -> Rule:
    return lambda data: at_most(len(data), bytes_max, " bytes")


def _several(count_max: int, each: Rule = _anything) -> Rule:
    def rule(items: Sequence[Any]) -> None:
        at_most(len(items), count_max, " items")
        if each is not _anything:
            for item in items:
                each(item)

    return rule


def _names(each: Rule) -> Rule:
    several = _several(NAMES_MAX, each)

    def rule(names: Sequence[str]) -> None:
        several(names)
        if len(set(names)) < len(names):
            raise InvalidFrame("a name occurs twice")

    return rule


def _ordered(rows: Sequence[tuple[int, ...]]) -> None:
    at_most(len(rows), NEIGHBOURS_MAX, " items")
    for before, after in pairwise(rows):
        if before[0] >= after[0]:
            raise InvalidFrame(f"not in order, {after[0]:016x} follows {before[0]:016x}")


def _key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise InvalidFrame(f"{len(key)} bytes, a key has {KEY_BYTES}")


def _exchange_key(key: bytes) -> None:
    if key:
        _key(key)


def _mac(mac: bytes) -> None:
    at_most(len(mac), MAC_BYTES, " bytes")


def _signature(signature: bytes) -> None:
    if signature and len(signature) != SIGNATURE_BYTES:
        raise InvalidFrame(f"{len(signature)} bytes, a signature has {SIGNATURE_BYTES}")


def _certificate(certificate: bytes) -> None:
    at_most(len(certificate), CERTIFICATE_BYTES_MAX, " bytes")


def _capacity(capacity: float) -> None:
    if not (isfinite(capacity) and capacity >= 0):
        raise InvalidFrame(f"{capacity}, it must be finite and not below 0")


def _group(group: str) -> None:
    if group != MANAGEMENT_GROUP:
        check_filter(group)


def _set(record: records.SetRecord) -> None:
    size = sum(len(name.encode()) for name in (*record.added, *record.removed))
    at_most(size, NAMES_BYTES_MAX, " bytes of names")
    if record.part >= record.parts:
        raise InvalidFrame(f"part {record.part} of {record.parts}, counted from 0")
    if record.parts > 1 and not record.added:
        raise InvalidFrame(f"part {record.part} of {record.parts} is empty")
    if record.base > record.version:
        raise InvalidFrame(f"base {record.base} is above version {record.version}")
    if record.base == record.version and record.removed:
        raise InvalidFrame(f"a whole set removes nothing, not {len(record.removed)} names")
    if record.base < record.version and record.parts > 1:
        raise InvalidFrame(f"a change has one part, not {record.parts}")


def _exactly(count: int) -> Rule:
    def rule(items: Sequence[Any]) -> None:
        if len(items) != count:
            raise InvalidFrame(f"{len(items)} items, there must be {count}")

    return rule


def _path(path: Sequence[int]) -> None:
    at_most(len(path), HOPS_MAX, " items")
    if len(set(path)) < len(path):
        raise InvalidFrame("a node occurs twice")


def _topic(entry: tuple[str, int]) -> None:
    check_name(entry[0])


def _repair_response(frame: frames.RepairResponse) -> None:
    if not frame.after <= frame.upto:
        raise InvalidFrame(f"goes from {frame.after} to {frame.upto}")


# ---------------------------------------------------------------- bounds of each frame


class _Bounds(NamedTuple):
    word: str
    fields: dict[str, Rule]
    whole: Rule = _anything


_ROUTE: dict[str, Rule] = {"hops": _number(HOPS_MAX), "via": _path}
"""The fields of a unicast frame that relays read."""


def _set_bounds(word: str, each: Rule) -> _Bounds:
    fields = {
        "added": _names(each),
        "removed": _names(each),
        "parts": _number(PARTS_MAX),
        "signature": _signature,
    }
    return _Bounds(word, fields, _set)


def _sealed_bounds(word: str) -> _Bounds:
    return _Bounds(word, {"key_id": _number(KEY_ID_MAX), **_ROUTE})


_label = _text(LABEL_BYTES_MAX)

# Frames and fields that are not listed hold only numbers of 64 bits.
_BOUNDS: dict[type, _Bounds] = {
    frames.Hello: _Bounds(
        "hello",
        {
            "federation": _label,
            "key": _key,
            "name": _label,
            "shared_settings": _text(SHARED_SETTINGS_BYTES_MAX),
            "capabilities": _several(CAPABILITIES_MAX, _label),
        },
    ),
    frames.Goodbye: _Bounds("goodbye", {"reason": _text(REASON_BYTES_MAX)}),
    frames.Summary: _Bounds("summary", {"rows": _several(ROWS_MAX)}),
    frames.Update: _Bounds("update", {"records": _several(ROWS_MAX, check_bounds)}),
    frames.Fetch: _Bounds("fetch", {"rows": _several(ROWS_MAX)}),
    frames.CoreAnnouncement: _Bounds(
        "core announcement",
        {
            "distance": _number(frames.UNREACHABLE),
            "parents": _several(PARENTS_MAX),
            "claims": check_bounds,
            "members": _several(FLAGS_MAX),
            "signature": _signature,
        },
    ),
    frames.MeshMembership: _Bounds(
        "mesh membership", {"joined": _names(_group), "left": _names(_group)}
    ),
    frames.AnnouncementRequest: _Bounds("announcement request", {"hops": _number(HOPS_MAX)}),
    frames.FrameAck: _Bounds("frame ack", {"missing": _several(MISSING_MAX)}),
    frames.InterestAcks: _Bounds("interest acks", {"entries": _several(NODES_MAX, check_bounds)}),
    frames.InterestAck: _Bounds("interest ack", {**_ROUTE, "mac": _mac}),
    frames.InterestAckRequest: _Bounds("interest ack request", _ROUTE),
    frames.PendingNotice: _Bounds("pending notice", _ROUTE),
    frames.Receipt: _Bounds("receipt", _ROUTE),
    frames.RepairResponse: _Bounds(
        "repair response",
        {"publications": _several(PUBLICATIONS_PER_FRAME_MAX), **_ROUTE},
        _repair_response,
    ),
    frames.RetainedDigests: _Bounds(
        "retained digests",
        {"digests": _exactly(frames.RETAINED_BUCKETS), **_ROUTE},
    ),
    frames.RetainedRequest: _Bounds(
        "retained request",
        {
            "buckets": _several(frames.RETAINED_BUCKETS, _number(frames.RETAINED_BUCKETS - 1)),
            "topics": _several(TOPICS_MAX, _topic),
            **_ROUTE,
        },
    ),
    frames.RetainedVersions: _Bounds(
        "retained versions", {"entries": _several(TOPICS_MAX, _topic), **_ROUTE}
    ),
    frames.RetainedValuesFrame: _Bounds(
        "retained values",
        {"publications": _several(PUBLICATIONS_PER_FRAME_MAX), **_ROUTE},
    ),
    frames.Query: _Bounds("query", {"data": _data(QUERY_BYTES_MAX), **_ROUTE}),
    frames.QueryResponse: _Bounds(
        "query response", {"data": _data(QUERY_RESPONSE_BYTES_MAX), **_ROUTE}
    ),
    frames.SealedUnicast: _sealed_bounds("sealed unicast"),
    frames.SealedBulk: _sealed_bounds("sealed bulk response"),
    frames.SequencedFrame: _Bounds("sequenced frame", {"frame": check_bounds}),
    records.NodeRecord: _Bounds(
        "node record",
        {
            "key": _key,
            "name": _label,
            "addresses": _several(ADDRESSES_MAX, _label),
            "capacity": _capacity,
            "links": _ordered,
            "exchange_key": _exchange_key,
            "certificates": _several(CERTIFICATES_MAX, _certificate),
            "signature": _signature,
        },
    ),
    records.InterestRecord: _set_bounds("interest record", check_filter),
    records.ClaimsRecord: _set_bounds("claims record", _group),
}
