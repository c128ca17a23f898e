"""What an outage was, from what was sent and what came."""

from hansa.cli.clients import Arrival
from hansa.cli.healing import Healing, measure

SENT = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def came(*numbers):
    return [Arrival(at=number + 0.25, topic="t", payload=b"%d" % number) for number in numbers]


def test_nothing_lost_is_healed_with_the_first_publication_after_the_fault():
    assert measure(SENT, came(0, 1, 2, 3, 4, 5), fault_at=1.5) == Healing(750.0, 4, 0, 0)


def test_healed_is_when_the_first_after_the_last_lost_one_arrives():
    assert measure(SENT, came(0, 1, 3, 5), fault_at=1.5) == Healing(3750.0, 4, 2, 0)


def test_what_was_lost_before_the_fault_does_not_count():
    assert measure(SENT, came(1, 2, 3, 4, 5), fault_at=0.5) == Healing(750.0, 5, 0, 0)


def test_the_last_one_lost_means_not_healed():
    assert measure(SENT, came(0, 1, 2), fault_at=1.5) == Healing(None, 4, 3, 0)


def test_nothing_published_after_the_fault_means_not_healed():
    assert measure(SENT, came(0, 1, 2, 3, 4, 5), fault_at=9.0) == Healing(None, 0, 0, 0)


def test_second_copies_are_counted():
    assert measure(SENT, came(0, 1, 1, 2, 3, 4, 5, 5, 5), fault_at=1.5).twice == 3
