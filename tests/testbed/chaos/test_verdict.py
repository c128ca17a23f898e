"""What became of every publication, judged from a history alone."""

import pytest

from hansa.errors import UsageError
from hansa.testbed.chaos.evidence import Evidence, Preface, read
from hansa.testbed.chaos.history import Event, Op, Stream, read_payload
from hansa.testbed.chaos.verdict import (
    GRACE_S,
    LATE_S,
    REPEAT_S,
    Circumstances,
    Excuse,
    Hit,
    Verdict,
    judge,
    unexplained,
)

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


def judged(*parts: list[Event], hits: tuple[Hit, ...] = ()) -> Verdict:
    events = [event for part in parts for event in part]
    return judge(events, {"bob": ["a"]}, Circumstances(hits={"bob": hits}))


def excused(**excuses: Excuse) -> Circumstances:
    return Circumstances({client: (excuse,) for client, excuse in excuses.items()})


def test_what_is_acknowledged_and_comes_in_order_is_ok():
    verdict = judged(published(A1, 0, 1, 2), got(A1, 0, 1, 2))
    assert verdict.fates == {"ok": 3}
    assert (verdict.published, verdict.acknowledged) == (3, 3)
    assert verdict.broken == []


def test_what_comes_late_is_recovered():
    verdict = judged(published(A2, 0), got(A2, 0, at=LATE_S + 1))
    assert verdict.fates == {"recovered": 1}
    assert verdict.broken == []


def test_what_was_not_acknowledged_is_unknown_or_recovered():
    verdict = judged(published(A1, 0, 1, ok=False), got(A1, 1))
    assert verdict.fates == {"unknown": 1, "recovered": 1}
    assert verdict.broken == []


@pytest.mark.parametrize(
    ("came", "where"),
    [((1, 2), "prefix"), ((0, 2), "middle"), ((0, 1), "postfix"), ((), "postfix")],
)
def test_what_was_acknowledged_and_never_comes_is_lost_somewhere(came, where):
    verdict = judged(published(A1, 0, 1, 2), got(A1, *came))
    assert verdict.fates["lost"] == 3 - len(came)
    assert set(verdict.lost_where) == {where}
    assert verdict.lost_at == {"bob": 3 - len(came)}
    assert verdict.broken == [f"{3 - len(came)} lost"]


def test_at_qos_0_neither_loss_nor_disorder_breaks_anything():
    verdict = judged(published(A0, 0, 1, 2), got(A0, 2, 1))
    assert verdict.fates == {"lost at QoS 0": 1, "ok": 2}
    assert verdict.broken == []


def test_duplicates_are_counted_by_quality():
    verdict = judged(published(A1, 0), published(A2, 0), got(A1, 0, 0), got(A2, 0, 0, 0))
    assert (verdict.twice(1), verdict.twice(2)) == (1, 2)
    assert verdict.broken == ["1 twice at QoS 1", "2 twice at QoS 2"]


def test_duplicates_are_allowed_after_a_crash_by_quality_and_number():
    events = [published(A1, 0), published(A2, 0), got(A1, 0, 0), got(A2, 0, 0, 0)]
    assert judged(*events, hits=(Hit(0.0, 1, 1),)).broken == ["2 twice at QoS 2"]
    assert judged(*events, hits=(Hit(0.0, 2, 1),)).broken == ["1 twice at QoS 2"]
    assert judged(*events, hits=(Hit(0.0, 2, 2),)).broken == []


def test_a_crash_where_it_was_published_explains_a_duplicate_at_qos_1_and_no_other():
    events = [*published(A1, 0), *published(A2, 0), *got(A1, 0, 0), *got(A2, 0, 0)]
    circumstances = Circumstances(hits={"alice": (Hit(0.0, 2, 1),), "carol": (Hit(0.0, 2, 9),)})
    assert judge(events, {"bob": ["a"]}, circumstances).broken == ["1 twice at QoS 2"]


def test_duplicates_are_allowed_only_soon_after_a_crash():
    hits = [Hit(10.0, 1, 2), Hit(20.0, 1, 1)]
    assert unexplained([9.9], hits) == [9.9]
    assert unexplained([10.0, 10.0, 10.0], hits) == [10.0]
    assert unexplained([10.0, 20.0, 20.0], hits) == []
    assert unexplained([20.0 + REPEAT_S, 20.1 + REPEAT_S], hits) == [20.1 + REPEAT_S]


def test_at_qos_0_no_crash_is_an_excuse_for_a_duplicate():
    assert judged(published(A0, 0), got(A0, 0, 0), hits=(Hit(0.0, 2, 9),)).unexplained[0] == 1


def test_at_qos_0_nothing_comes_twice():
    assert judged(published(A0, 0), got(A0, 0, 0)).broken == ["1 twice at QoS 0"]


def test_what_the_broker_refused_is_not_lost():
    refused = Event(0.1, Op.REFUSED, A1, 0)
    verdict = judged(published(A1, 0, ok=False), [refused])
    assert verdict.fates == {"refused": 1}
    assert verdict.acknowledged == 0


@pytest.mark.parametrize("forgetful", ["alice", "bob"])
def test_what_was_published_while_memory_was_lost_is_forfeited(forgetful):
    events = published(A1, 0, at=1.0) + published(A2, 0, at=2.0)
    verdict = judge(events, {"bob": ["a"]}, excused(**{forgetful: Excuse(0.9, 1.1)}))
    assert verdict.fates == {"forfeited": 1, "lost": 1}
    assert (verdict.excusable, verdict.promised) == (1, 2)
    assert judge(events, {"bob": ["a"]}, excused(carol=Excuse(0.0, 9.0))).fates == {"lost": 2}


def test_what_was_on_its_way_is_forfeited_unless_a_later_one_had_come():
    events = published(A1, 0, 1, 2, at=1.0) + got(A1, 1, at=1.5)
    fates = judge(events, {"bob": ["a"]}, excused(bob=Excuse(2.0, 2.0))).fates
    assert fates == {"lost": 1, "ok": 1, "forfeited": 1}
    late = excused(bob=Excuse(1.1 + GRACE_S, 9.0))
    assert judge(events, {"bob": ["a"]}, late).fates == {"lost": 2, "ok": 1}


def test_what_came_elsewhere_was_captured_and_is_not_forfeited():
    events = published(A1, 0, 1, at=1.0) + got(A1, 0, at=1.5, who="carol")
    wanted = {"bob": ["a"], "carol": ["a"]}
    excuse = excused(alice=Excuse(0.9, 1.1, ("carol",)))
    assert judge(events, wanted, excuse).fates == {"lost": 1, "ok": 1, "forfeited": 2}


def test_a_first_arrival_after_a_later_one_is_out_of_order():
    verdict = judged(published(A1, 0, 1, 2), got(A1, 0, 2, 1, 2))
    assert verdict.inversions == 1
    assert verdict.broken == ["1 out of order", "1 twice at QoS 1"]


def test_what_nobody_published_is_a_phantom():
    verdict = judged(published(A1, 0), got(A1, 0, 7), got(Stream("eve", "b", 1), 0))
    assert verdict.phantoms == 2
    assert verdict.broken == ["2 that nobody published"]
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
    circumstances = Circumstances(
        {"bob": (Excuse(0.0, 1.0, ("carol",)),)}, {"bob": (Hit(0, 1, 9),)}
    )
    evidence = Evidence(Preface({"bob": ["a"]}, circumstances, ["agent 1 ended"]), events)
    evidence.write(tmp_path / "history.jsonl")
    again = read(tmp_path / "history.jsonl")
    assert again.events == events
    assert again.preface.problems == ["agent 1 ended"]
    assert again.verdict() == evidence.verdict()
    assert again.verdict().fates == {"ok": 1, "forfeited": 1}


@pytest.mark.parametrize("text", [None, b"", b"{}", b'{"subscribers": 1}', b"[1", b'"\xff"'])
def test_what_is_no_history_is_refused_in_one_line(text, tmp_path):
    if text is not None:
        (tmp_path / "file").write_bytes(text)
    with pytest.raises(UsageError, match="file"):
        read(tmp_path / "file")


def test_without_any_publication_nothing_is_proved():
    assert judge([], {"bob": ["a"]}).broken == ["nothing was published"]


def test_a_payload_says_which_publication_it_is():
    assert read_payload(A2.payload(17)) == (A2, 17)
    assert read_payload(A2.payload(17, size=500)) == (A2, 17)
    assert len(A2.payload(17, size=500)) == 500
    for strange in (b"", b"a:b", b"a:b:c:d", b"a:b:1:2:x", b"\xff"):
        assert read_payload(strange) is None


def test_a_payload_or_a_property_that_was_changed_is_noticed():
    payload = A2.payload(17, b"properties")
    assert read_payload(payload, b"properties") == (A2, 17)
    assert read_payload(payload, b"") is None
    assert read_payload(payload.replace(b"17", b"18"), b"properties") is None
