"""The observer that is told by the configuration."""

import pytest

from hansa.errors import InvalidTopic
from hansa.observers.contract import UNCHANGED, Change
from hansa.observers.static import StaticObserver


def test_configured_filters_are_wanted_from_the_first_connection():
    observer = StaticObserver(["b/#", "a", "b/#"])
    assert observer.wanted() == ("a", "b/#")
    assert observer.complete
    assert observer.subscriptions() == ()
    assert observer.reconnected(session_lost=True, now=0.0) == Change(added=("b/#", "a"))
    assert observer.reconnected(session_lost=True, now=1.0) == UNCHANGED


def test_nothing_else_matters():
    observer = StaticObserver(["a"])
    observer.reconnected(session_lost=True, now=0.0)
    observer.begin_resync(now=0.0)
    assert observer.take("t", b"", now=0.0) == UNCHANGED
    assert observer.expire(now=9.0) == UNCHANGED
    assert observer.resync("text", now=0.0) == UNCHANGED
    assert observer.restore(observer.snapshot(), now=0.0) == UNCHANGED
    assert (observer.next_deadline(), observer.reason) == (None, "")


def test_bad_filter_is_refused_at_once():
    with pytest.raises(InvalidTopic):
        StaticObserver(["a/#/b"])
