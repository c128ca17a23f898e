"""Settings of guaranteed delivery: limits, and the settings of both logs."""

import pytest

from hansa.delivery.dedup.overlap import OVERLAP_COPIES_MAX
from hansa.delivery.dedup.redelivery import RECENT_MAX
from hansa.delivery.settings import IN_FLIGHT_LIMIT, DeliverySettings
from hansa.errors import UsageError
from hansa.journal.settings import JournalSettings


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"in_flight_max": 0}, "in_flight_max must be from 1 to 4096, not 0"),
        ({"in_flight_max": 4_097}, "in_flight_max must be from 1 to 4096, not 4097"),
        ({"inbox_bytes": 0}, "inbox_bytes must be at least 1, not 0"),
        (
            {"session_loss_policy": "maybe"},
            "session_loss_policy must be no-loss or no-dup, not 'maybe'",
        ),
        ({"retention_seconds": -1.0}, "retention_seconds"),
    ],
)
def test_value_out_of_range_is_refused(settings, problem):
    with pytest.raises(UsageError, match=problem):
        DeliverySettings(**settings)


def test_more_publications_are_remembered_than_can_be_in_flight():
    assert DeliverySettings(in_flight_max=IN_FLIGHT_LIMIT).in_flight_max == IN_FLIGHT_LIMIT
    assert min(RECENT_MAX, OVERLAP_COPIES_MAX) >= 2 * IN_FLIGHT_LIMIT


def test_log_settings():
    assert DeliverySettings().outbox_settings() == JournalSettings(
        retention_seconds=7 * 86_400.0, retention_bytes=4 << 30
    )
    small = DeliverySettings(retention_bytes=1_000, retention_seconds=5.0).outbox_settings()
    assert (small.segment_bytes, small.retention_bytes) == (250, 1_000)
    inbox = DeliverySettings().inbox_settings()
    assert inbox.retention_bytes == inbox.segment_bytes


def test_smallest_segment_has_one_byte():
    assert DeliverySettings(retention_bytes=3).outbox_settings().segment_bytes == 1


def test_defaults():
    assert DeliverySettings() == DeliverySettings(
        in_flight_max=1_000,
        inbox_bytes=67_108_864,
        session_loss_policy="no-loss",
        retention_seconds=604_800.0,
        retention_bytes=4_294_967_296,
    )
