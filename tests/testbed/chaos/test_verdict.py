"""The verdict over a history."""

import pytest

from hansa.errors import UsageError
from hansa.testbed.chaos.history import (
    HistoryEvent,
    HistoryOperation,
    PublisherStream,
    parse_payload,
)
from hansa.testbed.chaos.verdict import (
    GRACE_S,
    LATE_S,
    REPEAT_S,
    AllowedLoss,
    ChaosVerdict,
    Evidence,
    EvidenceHeader,
    FaultContext,
    Interruption,
    judge_history,
    read_evidence,
    unexplained_repeats,
)

A1 = PublisherStream("alice", "a", 1)
A2 = PublisherStream("alice", "a", 2)
A0 = PublisherStream("alice", "a", 0)


def published(
    stream: PublisherStream, *counters: int, at: float = 0.0, ok: bool = True
) -> list[HistoryEvent]:
    made = [
        HistoryEvent(at + n / 1000, HistoryOperation.INVOKE, stream, n, "", stream.qos)
        for n in counters
    ]
    return made + (
        [HistoryEvent(at + n / 1000, HistoryOperation.OK, stream, n) for n in counters]
        if ok
        else []
    )


def got(
    stream: PublisherStream, *counters: int, at: float = 0.1, who: str = "bob"
) -> list[HistoryEvent]:
    return [
        HistoryEvent(at + place / 1000, HistoryOperation.DELIVER, stream, n, who, stream.qos)
        for place, n in enumerate(counters)
    ]


def judged(*parts: list[HistoryEvent], hits: tuple[Interruption, ...] = ()) -> ChaosVerdict:
    events = [event for part in parts for event in part]
    return judge_history(events, {"bob": ["a"]}, FaultContext(interruptions={"bob": hits}))


def allowed(**losses: AllowedLoss) -> FaultContext:
    return FaultContext({client: (loss,) for client, loss in losses.items()})


def test_acknowledged_and_delivered_is_ok():
    verdict = judged(published(A1, 0, 1, 2), got(A1, 0, 1, 2))
    assert verdict.fates == {"ok": 3}
    assert (verdict.published, verdict.acknowledged) == (3, 3)
    assert verdict.violations == []


def test_late_delivery_is_recovered():
    verdict = judged(published(A2, 0), got(A2, 0, at=LATE_S + 1))
    assert verdict.fates == {"recovered": 1}
    assert verdict.violations == []


def test_unacknowledged_is_unknown_or_recovered():
    verdict = judged(published(A1, 0, 1, ok=False), got(A1, 1))
    assert verdict.fates == {"unknown": 1, "recovered": 1}
    assert verdict.violations == []


@pytest.mark.parametrize(
    ("came", "where"),
    [((1, 2), "prefix"), ((0, 2), "middle"), ((0, 1), "postfix"), ((), "postfix")],
)
def test_loss_is_counted_by_position(came, where):
    verdict = judged(published(A1, 0, 1, 2), got(A1, *came))
    assert verdict.fates["lost"] == 3 - len(came)
    assert set(verdict.lost_where) == {where}
    assert verdict.lost_at == {"bob": 3 - len(came)}
    assert verdict.violations == [f"{3 - len(came)} lost"]


def test_loss_and_reordering_at_qos_0_are_allowed():
    verdict = judged(published(A0, 0, 1, 2), got(A0, 2, 1))
    assert verdict.fates == {"lost at QoS 0": 1, "ok": 2}
    assert verdict.violations == []


def test_duplicates_are_counted_by_qos():
    verdict = judged(published(A1, 0), published(A2, 0), got(A1, 0, 0), got(A2, 0, 0, 0))
    assert (verdict.duplicate_count(1), verdict.duplicate_count(2)) == (1, 2)
    assert verdict.violations == ["1 twice at QoS 1", "2 twice at QoS 2"]


def test_interruption_allows_a_number_of_duplicates_up_to_a_qos():
    events = [published(A1, 0), published(A2, 0), got(A1, 0, 0), got(A2, 0, 0, 0)]
    assert judged(*events, hits=(Interruption(0.0, 1, 1),)).violations == ["2 twice at QoS 2"]
    assert judged(*events, hits=(Interruption(0.0, 2, 1),)).violations == ["1 twice at QoS 2"]
    assert judged(*events, hits=(Interruption(0.0, 2, 2),)).violations == []


def test_interruption_at_the_publisher_explains_duplicates_at_qos_1_only():
    events = [*published(A1, 0), *published(A2, 0), *got(A1, 0, 0), *got(A2, 0, 0)]
    context = FaultContext(
        interruptions={"alice": (Interruption(0.0, 2, 1),), "carol": (Interruption(0.0, 2, 9),)}
    )
    assert judge_history(events, {"bob": ["a"]}, context).violations == ["1 twice at QoS 2"]


def test_duplicates_are_allowed_only_soon_after_an_interruption():
    hits = [Interruption(10.0, 1, 2), Interruption(20.0, 1, 1)]
    assert unexplained_repeats([9.9], hits) == [9.9]
    assert unexplained_repeats([10.0, 10.0, 10.0], hits) == [10.0]
    assert unexplained_repeats([10.0, 20.0, 20.0], hits) == []
    assert unexplained_repeats([20.0 + REPEAT_S, 20.1 + REPEAT_S], hits) == [20.1 + REPEAT_S]


def test_interruption_does_not_allow_duplicates_at_qos_0():
    assert (
        judged(published(A0, 0), got(A0, 0, 0), hits=(Interruption(0.0, 2, 9),)).unexplained[0] == 1
    )


def test_duplicate_at_qos_0_is_a_violation():
    assert judged(published(A0, 0), got(A0, 0, 0)).violations == ["1 twice at QoS 0"]


def test_refused_publication_is_not_lost():
    refused = HistoryEvent(0.1, HistoryOperation.REFUSED, A1, 0)
    verdict = judged(published(A1, 0, ok=False), [refused])
    assert verdict.fates == {"refused": 1}
    assert verdict.acknowledged == 0


@pytest.mark.parametrize("client", ["alice", "bob"])
def test_loss_during_a_state_loss_is_forfeited(client):
    events = published(A1, 0, at=1.0) + published(A2, 0, at=2.0)
    verdict = judge_history(events, {"bob": ["a"]}, allowed(**{client: AllowedLoss(0.9, 1.1)}))
    assert verdict.fates == {"forfeited": 1, "lost": 1}
    assert (verdict.excusable, verdict.promised) == (1, 2)
    assert judge_history(events, {"bob": ["a"]}, allowed(carol=AllowedLoss(0.0, 9.0))).fates == {
        "lost": 2
    }


def test_loss_in_flight_is_forfeited_unless_a_later_one_had_been_delivered():
    events = published(A1, 0, 1, 2, at=1.0) + got(A1, 1, at=1.5)
    fates = judge_history(events, {"bob": ["a"]}, allowed(bob=AllowedLoss(2.0, 2.0))).fates
    assert fates == {"lost": 1, "ok": 1, "forfeited": 1}
    late = allowed(bob=AllowedLoss(1.1 + GRACE_S, 9.0))
    assert judge_history(events, {"bob": ["a"]}, late).fates == {"lost": 2, "ok": 1}


def test_captured_publication_is_not_forfeited():
    events = published(A1, 0, 1, at=1.0) + got(A1, 0, at=1.5, who="carol")
    topics = {"bob": ["a"], "carol": ["a"]}
    context = allowed(alice=AllowedLoss(0.9, 1.1, ("carol",)))
    assert judge_history(events, topics, context).fates == {"lost": 1, "ok": 1, "forfeited": 2}


def test_first_delivery_after_a_later_one_is_out_of_order():
    verdict = judged(published(A1, 0, 1, 2), got(A1, 0, 2, 1, 2))
    assert verdict.inversions == 1
    assert verdict.violations == ["1 out of order", "1 twice at QoS 1"]


def test_unpublished_delivery_is_a_phantom():
    verdict = judged(published(A1, 0), got(A1, 0, 7), got(PublisherStream("eve", "b", 1), 0))
    assert verdict.phantoms == 2
    assert verdict.violations == ["2 never published"]
    assert len(verdict.examples) == 2


def test_delivery_at_another_qos_is_a_phantom():
    stray = HistoryEvent(0.2, HistoryOperation.DELIVER, A2, 0, "bob", 1)
    assert judged(published(A2, 0), got(A2, 0), [stray]).phantoms == 1


def test_subscriber_is_judged_by_its_topics():
    events = published(A1, 0) + got(A1, 0)
    assert judge_history(events, {"bob": ["a"], "carol": ["b"]}).fates == {"ok": 1}
    assert judge_history(events, {"bob": ["a"], "carol": ["a"]}).fates == {"ok": 1, "lost": 1}


def test_evidence_can_be_written_and_judged_again(tmp_path):
    events = published(A1, 0, 1) + got(A1, 0)
    context = FaultContext(
        {"bob": (AllowedLoss(0.0, 1.0, ("carol",)),)}, {"bob": (Interruption(0, 1, 9),)}
    )
    evidence = Evidence(EvidenceHeader({"bob": ["a"]}, context, ["agent 1 ended"]), events)
    evidence.write(tmp_path / "history.jsonl")
    again = read_evidence(tmp_path / "history.jsonl")
    assert again.events == events
    assert again.header.problems == ["agent 1 ended"]
    assert again.judge() == evidence.judge()
    assert again.judge().fates == {"ok": 1, "forfeited": 1}


@pytest.mark.parametrize("text", [None, b"", b"{}", b'{"subscribers": 1}', b"[1", b'"\xff"'])
def test_invalid_evidence_file_is_refused(text, tmp_path):
    if text is not None:
        (tmp_path / "file").write_bytes(text)
    with pytest.raises(UsageError, match="file"):
        read_evidence(tmp_path / "file")


def test_empty_history_is_a_violation():
    assert judge_history([], {"bob": ["a"]}).violations == ["nothing was published"]


def test_payload_identifies_its_publication():
    assert parse_payload(A2.make_payload(17)) == (A2, 17)
    assert parse_payload(A2.make_payload(17, size=500)) == (A2, 17)
    assert len(A2.make_payload(17, size=500)) == 500
    for strange in (b"", b"a:b", b"a:b:c:d", b"a:b:1:2:x", b"\xff"):
        assert parse_payload(strange) is None


def test_altered_payload_or_property_is_detected():
    payload = A2.make_payload(17, b"properties")
    assert parse_payload(payload, b"properties") == (A2, 17)
    assert parse_payload(payload, b"") is None
    assert parse_payload(payload.replace(b"17", b"18"), b"properties") is None
