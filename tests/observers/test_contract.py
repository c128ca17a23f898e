"""What observers share."""

from hansa.observers.contract import UNCHANGED, Change, Completed, Interest


def test_filter_is_wanted_while_anybody_wants_it():
    interest = Interest()
    interest.hold("b")
    interest.hold("a")
    interest.hold("a")
    assert interest.change() == Change(added=("b", "a"))
    interest.release("a")
    assert interest.change() == UNCHANGED
    interest.release("a")
    assert interest.change() == Change(removed=("a",))
    assert interest.wanted() == ("b",)
    assert "a" not in interest


def test_change_is_the_net_change():
    interest = Interest()
    interest.hold("a")
    interest.change()
    interest.release("a")
    interest.hold("a")
    interest.hold("b")
    interest.release("b")
    assert interest.change() == UNCHANGED
    assert len(interest) == 1


def test_findings_go_with_a_change():
    assert Interest().change([Completed()]) == Change(findings=(Completed(),))
