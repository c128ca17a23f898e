"""The contents of one repair response."""

import pytest
from msgspec.structs import replace

from hansa.errors import InvalidFrame
from hansa.protocol.delivery.repair import OVERHEAD_BYTES, decode_repair, select_for_repair
from hansa.protocol.effects import ReadJournal
from hansa.protocol.events import JournalRead
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import RepairResponse

ME, YOU = NodeId(1), NodeId(2)


def publication(number: int, payload: bytes = b"") -> Publication:
    return Publication(ME, 7, number, 1, "t", payload, receivers=((YOU, number - 1),))


ALL = [publication(number) for number in range(1, 7)]
EACH = OVERHEAD_BYTES + len("t")


def test_selection_holds_all_publications_of_the_receiver():
    assert select_for_repair(ReadJournal(YOU, 7, 0, 6, 1_000), ALL) == JournalRead(
        YOU, 7, 0, 6, tuple(ALL)
    )


def test_bytes_are_bounded_but_the_first_publication_always_fits():
    assert select_for_repair(ReadJournal(YOU, 7, 0, 6, 2 * EACH), ALL) == JournalRead(
        YOU, 7, 0, 2, tuple(ALL[:2])
    )
    assert select_for_repair(ReadJournal(YOU, 7, 0, 6, 1), ALL) == JournalRead(
        YOU, 7, 0, 1, tuple(ALL[:1])
    )
    large = publication(1, b"x" * 1_000)
    assert select_for_repair(ReadJournal(YOU, 7, 0, 6, 2 * EACH), [large]).publications == (large,)


def test_journal_is_not_read_beyond_the_bound():
    read = iter(ALL)
    select_for_repair(ReadJournal(YOU, 7, 0, 6, 2 * EACH), read)
    assert next(read) == ALL[3]


def test_selection_ends_before_unreadable_records_and_continues_after_them():
    some = [None, *ALL[1:3], None, *ALL[4:]]
    assert select_for_repair(ReadJournal(YOU, 7, 0, 6, 1_000), some) == JournalRead(
        YOU, 7, 0, 3, tuple(ALL[1:3])
    )
    assert select_for_repair(ReadJournal(YOU, 7, 3, 6, 1_000), some[3:]).publications == tuple(
        ALL[4:]
    )


def test_missing_end_is_reported_by_the_next_response():
    assert select_for_repair(ReadJournal(YOU, 7, 0, 9, 1_000), ALL).upto == 6
    assert select_for_repair(ReadJournal(YOU, 7, 6, 9, 1_000), [None]) == JournalRead(
        YOU, 7, 6, 9, ()
    )


def frame(*items: Publication, after: int = 0, upto: int = 6) -> RepairResponse:
    return RepairResponse(YOU, ME, 7, after, upto, 0, tuple(map(encode, items)))


def test_sent_publications_are_decoded():
    bare = [replace(item, receivers=()) for item in ALL]
    assert decode_repair(frame(*bare)) == bare
    assert decode_repair(frame()) == []


@pytest.mark.parametrize(
    ("strange", "why"),
    [
        (frame(replace(ALL[0], origin=YOU)), "repair response with publications of another node"),
        (frame(replace(ALL[0], epoch=8)), "repair response with publications of another node"),
        (
            frame(replace(ALL[0], qos=0)),
            "repair response with publications that were not requested",
        ),
        (frame(ALL[0], after=1), "repair response with publications that were not requested"),
        (frame(ALL[5], upto=5), "repair response with publications that were not requested"),
        (frame(ALL[2], ALL[1]), "repair response with publications that were not requested"),
        (frame(ALL[2], ALL[2]), "repair response with publications that were not requested"),
        (RepairResponse(YOU, ME, 7, 0, 6, 0, (b"?",)), "invalid repair response"),
    ],
)
def test_invalid_response_is_refused(strange, why):
    with pytest.raises(InvalidFrame, match=why):
        decode_repair(strange)
