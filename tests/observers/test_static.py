"""The observer of configured filters."""

import pytest

from hansa.errors import InvalidTopic
from hansa.observers.base import NO_CHANGE, ObserverOutput
from hansa.observers.static import StaticObserver


def test_configured_filters_are_announced_from_the_first_connection():
    observer = StaticObserver(["b/#", "a", "b/#"])
    assert observer.subscribed_filters() == ("a", "b/#")
    assert observer.is_complete
    assert observer.topics_to_subscribe() == ()
    assert observer.on_connected(session_lost=True, now=0.0) == ObserverOutput(added=("b/#", "a"))
    assert observer.on_connected(session_lost=True, now=1.0) == NO_CHANGE


def test_other_input_is_ignored():
    observer = StaticObserver(["a"])
    observer.on_connected(session_lost=True, now=0.0)
    observer.begin_resync(now=0.0)
    assert observer.receive_publication("t", b"", now=0.0) == NO_CHANGE
    assert observer.handle_timer(now=9.0) == NO_CHANGE
    assert observer.resync("text", now=0.0) == NO_CHANGE
    assert observer.restore(observer.snapshot(), now=0.0) == NO_CHANGE
    assert (observer.next_deadline(), observer.incomplete_reason) == (None, "")


def test_invalid_filter_is_refused_at_once():
    with pytest.raises(InvalidTopic):
        StaticObserver(["a/#/b"])
