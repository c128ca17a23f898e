"""What became of every publication, judged from a history alone."""

import pytest

from hansa.chaos.history import Event, Op, Stream, read, read_payload, write
from hansa.chaos.verdict import LATE_S, Verdict, judge

A1 = Stream("alice", "a", 1)
A2 = Stream("alice", "a", 2)
A0 = Stream("alice", "a", 0)


def published(stream: Stream, *counters: int, at: float = 0.0, ok: bool = True) -> list[Event]:
    made = [Event(at + n / 1000, Op.INVOKE, stream, n, "", stream.qos) for n in counters]
    return made + ([Event(at + n / 1000, Op.OK, stream, n) for n in counters] if ok else [])


def got(stream: Stream, *counters: int, at: float = 0.1, who: str = "bob") -> list[Event]:
    return [
        Event(at + place / 1000, Op.DELIVER, stream, n, who, stream.qos)
        for place, n in enumerate(counters)
    ]


def judged(*parts: list[Event]) -> Verdict:
    return judge([event for part in parts for event in part], {"bob": ["a"]})


def test_what_is_acknowledged_and_comes_in_order_is_ok():
    verdict = judged(published(A1, 0, 1, 2), got(A1, 0, 1, 2))
    assert verdict.fates == {"ok": 3}
    assert (verdict.published, verdict.acknowledged) == (3, 3)
    assert verdict.broken() == []


def test_what_comes_late_is_recovered():
    verdict = judged(published(A2, 0), got(A2, 0, at=LATE_S + 1))
    assert verdict.fates == {"recovered": 1}
    assert verdict.broken() == []


def test_what_was_not_acknowledged_is_unknown_or_recovered():
    verdict = judged(published(A1, 0, 1, ok=False), got(A1, 1))
    assert verdict.fates == {"unknown": 1, "recovered": 1}
    assert verdict.broken() == []


@pytest.mark.parametrize(
    ("came", "where"),
    [((1, 2), "prefix"), ((0, 2), "middle"), ((0, 1), "postfix"), ((), "postfix")],
)
def test_what_was_acknowledged_and_never_comes_is_lost_somewhere(came, where):
    verdict = judged(published(A1, 0, 1, 2), got(A1, *came))
    assert verdict.fates["lost"] == 3 - len(came)
    assert set(verdict.lost_where) == {where}
    assert verdict.lost_at == {"bob": 3 - len(came)}
    assert verdict.broken() == [f"{3 - len(came)} lost"]


def test_at_qos_0_neither_loss_nor_disorder_breaks_anything():
    verdict = judged(published(A0, 0, 1, 2), got(A0, 2, 1))
    assert verdict.fates == {"lost at QoS 0": 1, "ok": 2}
    assert verdict.broken() == []


def test_duplicates_are_counted_by_quality():
    verdict = judged(published(A1, 0), published(A2, 0), got(A1, 0, 0), got(A2, 0, 0, 0))
    assert (verdict.twice(1), verdict.twice(2)) == (1, 2)
    assert verdict.broken() == ["1 twice at QoS 1", "2 twice at QoS 2"]


def test_duplicates_are_allowed_where_something_crashed():
    verdict = judged(published(A1, 0), published(A2, 0), got(A1, 0, 0), got(A2, 0, 0, 0))
    assert verdict.broken({1: {"bob": 1}}) == ["2 twice at QoS 2"]
    assert verdict.broken({1: {"carol": 1}, 2: {"bob": 2}}) == ["1 twice at QoS 1"]


def test_at_qos_0_nothing_comes_twice():
    assert judged(published(A0, 0), got(A0, 0, 0)).broken() == ["1 twice at QoS 0"]


def test_what_the_broker_refused_is_not_lost():
    refused = Event(0.1, Op.REFUSED, A1, 0)
    verdict = judged(published(A1, 0, ok=False), [refused])
    assert verdict.fates == {"refused": 1}
    assert verdict.acknowledged == 0


@pytest.mark.parametrize("forgetful", ["alice", "bob"])
def test_what_was_published_while_memory_was_lost_is_forfeited(forgetful):
    events = published(A1, 0, at=1.0) + published(A2, 0, at=2.0)
    verdict = judge(events, {"bob": ["a"]}, {forgetful: [(0.9, 1.1)]})
    assert verdict.fates == {"forfeited": 1, "lost": 1}
    assert judge(events, {"bob": ["a"]}, {"carol": [(0.0, 9.0)]}).fates == {"lost": 2}


def test_a_first_arrival_after_a_later_one_is_out_of_order():
    verdict = judged(published(A1, 0, 1, 2), got(A1, 0, 2, 1, 2))
    assert verdict.inversions == 1
    assert verdict.broken({1: {"bob": 1}}) == ["1 out of order"]


def test_what_nobody_published_is_a_phantom():
    verdict = judged(published(A1, 0), got(A1, 0, 7), got(Stream("eve", "b", 1), 0))
    assert verdict.phantoms == 2
    assert verdict.broken() == ["2 that nobody published"]
    assert len(verdict.examples) == 2


def test_another_quality_than_published_is_a_phantom():
    stray = Event(0.2, Op.DELIVER, A2, 0, "bob", 1)
    assert judged(published(A2, 0), got(A2, 0), [stray]).phantoms == 1


def test_each_subscriber_is_judged_by_what_it_wants():
    events = published(A1, 0) + got(A1, 0)
    assert judge(events, {"bob": ["a"], "carol": ["b"]}).fates == {"ok": 1}
    assert judge(events, {"bob": ["a"], "carol": ["a"]}).fates == {"ok": 1, "lost": 1}


def test_a_history_can_be_written_and_judged_again(tmp_path):
    events = published(A1, 0, 1) + got(A1, 0)
    write(events, tmp_path / "history.jsonl")
    assert read(tmp_path / "history.jsonl") == events


def test_a_payload_says_which_publication_it_is():
    assert read_payload(A2.payload(17)) == (A2, 17)
    for strange in (b"", b"a:b", b"a:b:c:d", b"a:b:1:2:x", b"\xff"):
        assert read_payload(strange) is None


def test_a_payload_or_a_property_that_was_changed_is_noticed():
    payload = A2.payload(17, b"properties")
    assert read_payload(payload, b"properties") == (A2, 17)
    assert read_payload(payload, b"") is None
    assert read_payload(payload.replace(b"17", b"18"), b"properties") is None
