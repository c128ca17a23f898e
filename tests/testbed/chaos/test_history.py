"""Missing deliveries, counted event by event, equal the losses of the verdict."""

from hypothesis import given
from hypothesis import strategies as st

from hansa.testbed.chaos.history import (
    HistoryEvent,
    HistoryOperation,
    OutstandingDeliveries,
    PublisherStream,
)
from hansa.testbed.chaos.verdict import judge_history

TOPICS = {"bob": ["a"], "carol": ["a", "b"]}

events = st.builds(
    lambda op, topic, qos, counter, who: HistoryEvent(
        0.0,
        op,
        PublisherStream("alice", topic, qos),
        counter,
        who if op is HistoryOperation.DELIVER else "",
        qos,
    ),
    st.sampled_from([HistoryOperation.OK, HistoryOperation.DELIVER]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["bob", "carol"]),
)


@given(st.lists(events))
def test_missing_count_equals_losses_of_the_verdict(seen):
    outstanding = OutstandingDeliveries(TOPICS)
    for event in seen:
        outstanding.add_event(event)
    attempts = [
        HistoryEvent(
            0.0, HistoryOperation.INVOKE, PublisherStream("alice", topic, qos), counter, "", qos
        )
        for topic in "abc"
        for qos in range(3)
        for counter in range(3)
    ]
    once = list(
        {(each.op, each.stream, each.counter, each.subscriber): each for each in seen}.values()
    )
    assert outstanding.missing_count == judge_history([*attempts, *once], TOPICS).fates["lost"]
    assert outstanding.history == seen
