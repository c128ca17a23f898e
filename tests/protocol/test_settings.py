"""Settings refuse invalid values, and presets change only what they say."""

from dataclasses import FrozenInstanceError, asdict, fields
from typing import Any

import pytest

from hansa.errors import UsageError
from hansa.protocol.settings import (
    PRESETS,
    ManagementBy,
    Metric,
    NonMemberForwarding,
    ProtocolSettings,
)

DEFAULTS = ProtocolSettings()
ABOVE_ZERO = (
    "heartbeat_interval",
    "heartbeat_limit",
    "announcement_request_interval_max",
    "interest_ack_retry_interval",
    "repair_retry_interval",
    "interest_lease",
)
SECONDS = tuple(field.name for field in fields(DEFAULTS) if field.type is float)


def changed(**values: Any) -> dict[str, Any]:
    return asdict(ProtocolSettings(**values))


def refusal(**values: Any) -> str:
    with pytest.raises(UsageError) as refused:
        ProtocolSettings(**values)
    return str(refused.value)


def test_settings_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        DEFAULTS.redundancy = 3  # type: ignore[misc]


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", ABOVE_ZERO)
@pytest.mark.parametrize("value", [0.0, -1.0, 0, -1])
def test_some_intervals_must_be_positive(name, value):
    assert refusal(**{name: value}) == f"{name} must be above 0 seconds, not {value}"


@pytest.mark.parametrize("name", sorted(set(SECONDS) - set(ABOVE_ZERO)))
@pytest.mark.parametrize("value", [-0.001, -1, float("nan")])
def test_no_time_is_negative(name, value):
    assert refusal(**{name: value}) == f"{name} must not be negative, not {value}"


@pytest.mark.parametrize("name", sorted(set(SECONDS) - {*ABOVE_ZERO, "retained_check_delay"}))
def test_delays_may_be_zero(name):
    assert changed(**{name: 0}) == {**asdict(DEFAULTS), name: 0}


def test_retained_check_delay_has_a_minimum():
    rule = "retained_check_delay must be at least 0.1 seconds"
    assert refusal(retained_check_delay=0.09).startswith(rule)
    assert ProtocolSettings(retained_check_delay=0.1).retained_check_delay == 0.1


def test_neighbour_may_miss_one_heartbeat():
    rule = "heartbeat_limit must be at least twice"
    assert refusal(heartbeat_interval=3.0, heartbeat_limit=5.9).startswith(rule)
    assert ProtocolSettings(heartbeat_interval=3.0, heartbeat_limit=6.0).heartbeat_limit == 6.0


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [("redundancy", 1, 16), ("group_depth", 0, 32), ("packet_bytes_max", 8_192, 65 << 20)],
)
def test_numbers_stay_in_their_range(name, lowest, highest):
    for value in (lowest, highest):
        assert changed(**{name: value})[name] == value
    assert refusal(**{name: highest + 1}).endswith(f"to {highest}, not {highest + 1}")
    assert refusal(**{name: lowest - 1}).startswith(f"{name} must")


@pytest.mark.parametrize("window", [-64, 0, 32, 63, 65, 4_095])
def test_window_is_a_power_of_two(window):
    assert refusal(dedup_window=window).startswith("dedup_window must")


@pytest.mark.parametrize("window", [64, 128, 65_536])
def test_every_power_of_two_is_a_valid_window(window):
    assert ProtocolSettings(dedup_window=window).dedup_window == window


@pytest.mark.parametrize(
    "name",
    [
        "repair_bytes",
        "uncommitted_max",
        "filters_per_node_max",
        "nodes_max",
        "plans_max",
        "unacknowledged_max",
    ],
)
def test_bounds_are_at_least_one(name):
    assert refusal(**{name: 0}) == f"{name} must be at least 1, not 0"
    assert changed(**{name: 1})[name] == 1


def test_federation_has_a_name():
    rule = "federation must have a name of at most 255 bytes"
    assert refusal(federation="") == f"{rule}, not ''"
    assert refusal(federation="é" * 128) == f"{rule}, not {'é' * 128!r}"


def test_nodes_max_is_limited_by_the_frame():
    assert refusal(nodes_max=8_193) == "nodes_max must be at most 8192, not 8193"


# ---------------------------------------------------------------- shared settings


def test_shared_settings_are_readable_text():
    assert DEFAULTS.shared_settings_text() == (
        "strategy=mesh redundancy=2 metric=hops management_by=id group_depth=0"
        " packet_bytes_max=1048576"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": "tree"},
        {"redundancy": 1},
        {"metric": Metric.RTT},
        {"management_by": ManagementBy.CAPACITY},
        {"group_depth": 2},
    ],
)
def test_shared_settings_are_in_the_text(change):
    ((name, value),) = change.items()
    assert f"{name}={value}" in ProtocolSettings(**change).shared_settings_text().split()


def test_other_settings_are_not_in_the_text():
    loose = ProtocolSettings(
        non_member_forwarding=NonMemberForwarding.ALL, linger=9.0, nodes_max=7, federation="other"
    )
    assert loose.shared_settings_text() == DEFAULTS.shared_settings_text()


# ---------------------------------------------------------------- presets


def test_presets_differ_only_where_they_say():
    differences = {
        name: {
            field: value
            for field, value in asdict(preset).items()
            if value != asdict(DEFAULTS)[field]
        }
        for name, preset in PRESETS.items()
    }
    assert differences == {
        "default": {},
        "machado": {
            "heartbeat_interval": 10.0,
            "heartbeat_limit": 60.0,
            "trust_close": False,
            "change_delay": 20.0,
            "announcement_interval_min": 30.0,
            "announcement_request_interval_max": 30.0,
            "management_claim_delay": 20.0,
            "takeover_delay": 60.0,
            "takeover_fallback_delay": 60.0,
            "interest_ack_retry_interval": 60.0,
            "withdraw_delay_max": 120.0,
        },
    }


def test_nodes_of_different_presets_can_be_neighbours():
    assert {preset.shared_settings_text() for preset in PRESETS.values()} == {
        DEFAULTS.shared_settings_text()
    }
