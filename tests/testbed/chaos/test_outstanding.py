"""What is missing, event by event, is what the verdict would call lost."""

from hypothesis import given
from hypothesis import strategies as st

from hansa.testbed.chaos.history import HistoryEvent, HistoryOperation, PublisherStream
from hansa.testbed.chaos.outstanding import OutstandingDeliveries
from hansa.testbed.chaos.verdict import judge_history

WANTED = {"bob": ["a"], "carol": ["a", "b"]}

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
def test_what_is_missing_is_what_would_be_lost(seen):
    account = OutstandingDeliveries(WANTED)
    for event in seen:
        account.add_event(event)
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
    assert account.missing_count == judge_history([*attempts, *once], WANTED).fates["lost"]
    assert account.history == seen
