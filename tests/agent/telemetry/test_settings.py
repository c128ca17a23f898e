"""Telemetry and recording settings of an agent."""

import pytest

from hansa.agent.settings import load_settings
from hansa.agent.telemetry.settings import SampleRate, TelemetrySettings
from hansa.errors import UsageError


@pytest.mark.parametrize(
    ("written", "is_on", "one_in"),
    [('"off"', False, 0), ('"none"', True, 0), ('"all"', True, 1), ("100", True, 100)],
)
def test_sample_is_keyword_or_number(tmp_path, written, is_on, one_in):
    path = tmp_path / "node.toml"
    path.write_text(f"[telemetry]\nsample = {written}\n")
    settings = load_settings(path, {}).telemetry
    assert (settings.is_enabled, settings.sample.one_in) == (is_on, one_in)


def test_sample_is_read_from_environment():
    assert load_settings(None, {"HANSA_TELEMETRY_SAMPLE": "10"}).telemetry.sample.one_in == 10


@pytest.mark.parametrize("value", ["some", "0", "-1", "1.5", "true", '""', "²"])
def test_invalid_value_is_refused_with_the_valid_ones(tmp_path, value):
    written = value if value in ('""', "0", "-1", "1.5", "true") else f'"{value}"'
    path = tmp_path / "node.toml"
    path.write_text(f"[telemetry]\nsample = {written}\n")
    with pytest.raises(UsageError, match="sample must be off, none, all, or a number n for one"):
        load_settings(path, {})


def test_telemetry_is_off_by_default():
    assert not TelemetrySettings().is_enabled


def test_segments_are_small_enough_for_retention_to_drop_some():
    journal = TelemetrySettings(SampleRate("all"), retention_bytes=1_000_000).journal_settings()
    assert (journal.segment_bytes, journal.retention_bytes) == (250_000, 1_000_000)
    with pytest.raises(UsageError, match="retention_bytes must be at least 1"):
        TelemetrySettings(retention_bytes=0)


@pytest.mark.parametrize("given", [{"HANSA_RECORD": "a"}, {"HANSA_TELEMETRY_SAMPLE": "all"}])
def test_agent_without_journal_cannot_record(given):
    with pytest.raises(UsageError, match="leave out record and .telemetry."):
        load_settings(None, {"HANSA_MODE": "mqtt-fed", "HANSA_MQTT_FED_ID": "1", **given})
