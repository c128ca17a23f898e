"""What an outage was, from what was sent and what came."""

from hansa.testbed.demo.healing import OutageMeasurement, measure_outage

SENT = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def came(*numbers):
    return [(number, number + 0.25) for number in numbers]


def test_nothing_lost_is_healed_with_the_first_publication_after_the_fault():
    assert measure_outage(SENT, came(0, 1, 2, 3, 4, 5), since=1.5) == OutageMeasurement(
        0.75, 4, 0, 0
    )


def test_healed_is_when_the_first_after_the_last_lost_one_arrives():
    assert measure_outage(SENT, came(0, 1, 3, 5), since=1.5) == OutageMeasurement(3.75, 4, 2, 0)


def test_what_was_lost_before_the_fault_does_not_count():
    assert measure_outage(SENT, came(1, 2, 3, 4, 5), since=0.5) == OutageMeasurement(0.75, 5, 0, 0)


def test_the_last_one_lost_means_not_healed():
    assert measure_outage(SENT, came(0, 1, 2), since=1.5) == OutageMeasurement(None, 4, 3, 0)


def test_nothing_published_after_the_fault_means_not_healed():
    assert measure_outage(SENT, came(0, 1, 2, 3, 4, 5), since=9.0) == OutageMeasurement(
        None, 0, 0, 0
    )


def test_deliveries_are_not_interrupted_if_none_was_lost():
    calm = measure_outage(SENT, came(0, 1, 2, 3, 4, 5), since=1.5)
    interrupted = measure_outage(SENT, came(0, 1, 3, 4, 5), since=1.5)
    over = measure_outage(SENT, came(0, 1, 2), since=1.5)
    assert (calm.interruption_s, interrupted.interruption_s, over.interruption_s) == (0, 1.75, None)


def test_second_copies_are_counted():
    assert measure_outage(SENT, came(0, 1, 1, 2, 3, 4, 5, 5, 5), since=0.5).duplicates == 3


def test_publications_after_the_end_of_the_window_do_not_count():
    assert measure_outage(SENT, came(0, 2, 3, 3, 5), since=0.5, until=2.5) == OutageMeasurement(
        1.75, 2, 1, 0
    )


def test_publication_that_was_in_flight_when_the_fault_struck_counts_as_its_loss():
    healing = measure_outage(SENT, came(0, 1, 3, 4, 5), since=2.1, in_flight_s=0.5)
    assert healing == OutageMeasurement(3.25 - 2.1, 4, 1, 0)


def test_windows_that_follow_each_other_count_every_publication_once():
    arrivals = came(0, 0, 2, 3, 5)
    parts = [
        measure_outage(SENT, arrivals, until=1.5),
        measure_outage(SENT, arrivals, 1.5, 3.0),
        measure_outage(SENT, arrivals, 3.0),
    ]
    assert [(part.published, part.arrived, part.duplicates) for part in parts] == [
        (2, 1, 1),
        (1, 1, 0),
        (3, 2, 0),
    ]
