"""Observers at a broker that sends nonsense: no exception, and no completeness without proof."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.observers.base import Observer
from hansa.observers.beacon import BeaconObserver
from hansa.observers.mosquitto.observer import MosquittoObserver
from hansa.observers.topics import TopicsObserver

LEVELS = st.text(string.ascii_letters + string.digits + " $/+#", max_size=8)
NUMBERS = st.one_of(
    st.integers(-(1 << 70), 1 << 70).map(str), st.sampled_from(["", "-1", "1e9", "nan", "٣", "0x1"])
)
WORDS = st.sampled_from(
    ["New client connected from ", " as ", " (p2, c1, k60).", "Client ", " disconnected.", " 1 ",
     "mosquitto version 2.0.11 starting", "Reloading config.", "Expiring client ", "a/+", "#"]
)  # fmt: skip
LINES = st.lists(st.one_of(WORDS, st.text(max_size=5))).map("".join)
JSON = st.sampled_from(
    [
        "{}",
        "[]",
        '{"clientId": 1}',
        '{"clientId": "c", "subs": [{"topic": 1}]}',
        "[" * 2_000,
        "null",
    ]
)
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.one_of(NUMBERS, LINES, JSON).map(str.encode),
    LINES.map(lambda line: f"1700000000: {line}".encode(errors="replace")),
)


def topics_of(observer: Observer) -> list[str]:
    """Return topics on which the observer gets publications."""
    filters = (*observer.topics_to_subscribe(), *observer.extra_subscriptions())
    return [each.replace("+", "x").replace("#", "y/subscribed") for each in filters]


MAKERS = {
    "mosquitto": lambda: MosquittoObserver("hansa-"),
    "aedes": lambda: TopicsObserver("aedes", "hansa-", False),
    "rmqtt": lambda: TopicsObserver("rmqtt", "hansa-", False),
    "beacon": lambda: BeaconObserver(10.0),
}


@pytest.mark.parametrize("kind", MAKERS)
@given(data=st.data())
def test_nonsense_raises_nothing_and_every_change_is_reported(kind, data):
    observer: Observer = MAKERS[kind]()
    observer.on_connected(session_lost=True, now=0.0)
    known = set(observer.subscribed_filters())
    topics = st.sampled_from([*topics_of(observer), "$SYS/other", "x"])
    for topic, payload in data.draw(st.lists(st.tuples(topics, PAYLOADS), max_size=8)):
        output = observer.receive_publication(topic, payload, now=1.0)
        known = (known | set(output.added)) - set(output.removed)
        assert known == set(observer.subscribed_filters())
        assert bool(observer.incomplete_reason) is not observer.is_complete


@given(st.lists(NUMBERS.map(str.encode), min_size=1, max_size=4))
def test_counters_that_do_not_fit_prove_nothing(counts):
    """The broker has one subscription of the agent, and says that there are none, or nonsense."""
    observer = MosquittoObserver("hansa-")
    observer.on_connected(session_lost=True, now=0.0)
    for topic in observer.topics_to_subscribe():
        line = f"1: hansa-watch 0 {topic}".encode()
        observer.receive_publication("$SYS/broker/log/M/subscribe", line, now=0.0)
    own = len(observer.topics_to_subscribe())
    for text in counts:
        observer.receive_publication("$SYS/broker/subscriptions/count", text, now=1.0)
        observer.receive_publication("$SYS/broker/uptime", b"1 seconds", now=1.0)
    if all(text != str(own).encode() for text in counts):
        assert not observer.is_complete
