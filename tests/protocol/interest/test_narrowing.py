"""Filters of clients that are narrowed to the topics of a certificate."""

from hansa.protocol.interest.narrowing import InterestNarrowing
from hansa.protocol.membership.rights import Rights


def test_narrowed_filter_stays_while_one_of_its_clients_subscribes():
    narrowing = InterestNarrowing(Rights(may_subscribe=("plant/a/#",)))
    assert narrowing.apply_change(["#", "plant/#"], []) == (["plant/a/#"], [], [])
    assert narrowing.apply_change([], ["#"]) == ([], [], [])
    assert narrowing.apply_change([], ["plant/#"]) == ([], ["plant/a/#"], [])


def test_filter_outside_the_topics_is_refused():
    narrowing = InterestNarrowing(Rights(may_subscribe=("plant/a/#",)))
    assert narrowing.apply_change(["office/#"], []) == ([], [], ["office/#"])
