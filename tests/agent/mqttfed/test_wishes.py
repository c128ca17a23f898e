"""Filters as topics: what one client gives up, another may still want."""

from hansa.agent.mqttfed.wishes import Wishes

PLAIN, SHARED = "federated/t", "$share/g/federated/t"


def test_a_topic_is_wanted_until_its_last_filter_goes():
    wishes = Wishes()
    assert wishes.change([PLAIN], []) == (("t",), ())
    assert wishes.change([SHARED], []) == ((), ())
    assert wishes.change([], [PLAIN]) == ((), ())
    assert wishes.change([], [SHARED]) == ((), ("t",))


def test_what_is_not_federated_or_has_wildcards_is_left_out():
    wishes = Wishes()
    assert wishes.change(["other/t", "federated/#", "federated/+/x"], []) == ((), ())
    assert wishes.wildcards == 2
    assert wishes.change([], ["other/t", "federated/#", "federated/+/x"]) == ((), ())
