"""The base class of observers."""

from hansa.observers.base import NO_CHANGE, FilterCounts, ObservationComplete, ObserverOutput


def test_filter_is_subscribed_while_a_client_is_subscribed():
    interest = FilterCounts()
    interest.add("b")
    interest.add("a")
    interest.add("a")
    assert interest.drain_changes() == ObserverOutput(added=("b", "a"))
    interest.remove("a")
    assert interest.drain_changes() == NO_CHANGE
    interest.remove("a")
    assert interest.drain_changes() == ObserverOutput(removed=("a",))
    assert interest.subscribed_filters() == ("b",)
    assert "a" not in interest


def test_change_is_the_net_change():
    interest = FilterCounts()
    interest.add("a")
    interest.drain_changes()
    interest.remove("a")
    interest.add("a")
    interest.add("b")
    interest.remove("b")
    assert interest.drain_changes() == NO_CHANGE
    assert len(interest) == 1


def test_findings_are_returned_with_change():
    assert FilterCounts().drain_changes([ObservationComplete()]) == ObserverOutput(
        findings=(ObservationComplete(),)
    )
