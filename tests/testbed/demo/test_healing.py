"""Measurement of outages."""

from hansa.testbed.demo.healing import OutageMeasurement, measure_outage

SENT = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def came(*numbers):
    return [(number, number + 0.25) for number in numbers]


def test_without_loss_the_first_publication_ends_the_outage():
    assert measure_outage(SENT, came(0, 1, 2, 3, 4, 5), since=1.5) == OutageMeasurement(
        0.75, 4, 0, 0
    )


def test_outage_ends_with_the_first_arrival_after_the_last_loss():
    assert measure_outage(SENT, came(0, 1, 3, 5), since=1.5) == OutageMeasurement(3.75, 4, 2, 0)


def test_losses_before_the_fault_are_ignored():
    assert measure_outage(SENT, came(1, 2, 3, 4, 5), since=0.5) == OutageMeasurement(0.75, 5, 0, 0)


def test_outage_does_not_end_if_the_last_publication_is_lost():
    assert measure_outage(SENT, came(0, 1, 2), since=1.5) == OutageMeasurement(None, 4, 3, 0)


def test_outage_does_not_end_without_publications():
    assert measure_outage(SENT, came(0, 1, 2, 3, 4, 5), since=9.0) == OutageMeasurement(
        None, 0, 0, 0
    )


def test_deliveries_are_not_interrupted_if_none_was_lost():
    calm = measure_outage(SENT, came(0, 1, 2, 3, 4, 5), since=1.5)
    interrupted = measure_outage(SENT, came(0, 1, 3, 4, 5), since=1.5)
    over = measure_outage(SENT, came(0, 1, 2), since=1.5)
    assert (calm.interruption_s, interrupted.interruption_s, over.interruption_s) == (0, 1.75, None)


def test_duplicates_are_counted():
    assert measure_outage(SENT, came(0, 1, 1, 2, 3, 4, 5, 5, 5), since=0.5).duplicates == 3


def test_publications_after_the_window_are_ignored():
    assert measure_outage(SENT, came(0, 2, 3, 3, 5), since=0.5, until=2.5) == OutageMeasurement(
        1.75, 2, 1, 0
    )


def test_publication_in_flight_at_the_fault_is_included():
    healing = measure_outage(SENT, came(0, 1, 3, 4, 5), since=2.1, in_flight_s=0.5)
    assert healing == OutageMeasurement(3.25 - 2.1, 4, 1, 0)


def test_adjacent_windows_count_every_publication_once():
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
