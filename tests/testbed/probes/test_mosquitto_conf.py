"""Findings from a configuration of Mosquitto."""

from pathlib import Path

import pytest

from hansa.agent.broker.mosquitto_conf import read_settings
from hansa.errors import UsageError
from hansa.testbed.probes.advice import LOG_SETTINGS, BrokerFindings
from hansa.testbed.probes.mosquitto_conf import (
    add_configured,
    add_lines,
    make_findings,
    missing_lines,
    needs_restart,
)

COMPLETE = (
    *LOG_SETTINGS,
    "log_dest file /var/log/mosquitto.log",
    "persistence true",
    "max_queued_messages 100000",
)
GOOD = BrokerFindings(
    logs_subscribe=True,
    logs_unsubscribe=True,
    logs_connect=True,
    logs_takeover=True,
    publishes_counts=True,
    has_history=True,
    has_persistence=True,
)


def findings(directory: Path, *lines: str) -> BrokerFindings:
    path = directory / "mosquitto.conf"
    path.write_text("\n".join(lines) + "\n")
    return make_findings(read_settings(path))


def test_complete_configuration(tmp_path):
    assert findings(tmp_path, *COMPLETE) == GOOD
    assert findings(tmp_path, *COMPLETE, "  # log_dest none", "", "max_queued_messages 0") == GOOD
    types = [line for line in COMPLETE if not line.startswith("log_type")]
    assert findings(tmp_path, *types, "log_type all") == GOOD


@pytest.mark.parametrize(
    ("missing", "field"),
    [
        ("log_type subscribe", "logs_subscribe"),
        ("log_type unsubscribe", "logs_unsubscribe"),
        ("log_type notice", "logs_connect"),
        ("log_type error", "logs_takeover"),
        ("log_type information", "has_history"),
        ("log_dest file /var/log/mosquitto.log", "has_history"),
        ("log_dest topic", "logs_subscribe"),
        ("persistence true", "has_persistence"),
    ],
)
def test_missing_line(tmp_path, missing, field):
    found = findings(tmp_path, *(line for line in COMPLETE if line != missing))
    assert getattr(found, field) is False


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("connection_messages false", "logs_connect"),
        ("sys_interval 0", "publishes_counts"),
        ("persistence false", "has_persistence"),
    ],
)
def test_last_line_has_precedence(tmp_path, line, field):
    assert getattr(findings(tmp_path, *COMPLETE, line), field) is False


def test_defaults_log_no_subscriptions_and_queue_little(tmp_path):
    found = findings(tmp_path, "log_dest topic", "log_dest file /x")
    assert (found.logs_subscribe, found.logs_connect, found.has_history) == (False, True, True)
    assert found.dropped_count == 0


def test_included_files_are_read(tmp_path):
    included = tmp_path / "conf.d"
    included.mkdir()
    (included / "hansa.conf").write_text("\n".join(COMPLETE))
    (included / "README").write_text("sys_interval 0")
    assert findings(tmp_path, "include_dir conf.d", "connection far") == BrokerFindings(
        **{name: getattr(GOOD, name) for name in GOOD.__slots__ if name != "bridges"},
        bridges=("far",),
    )


def test_missing_file(tmp_path):
    with pytest.raises(UsageError, match="cannot read .*: No such file"):
        read_settings(tmp_path / "none.conf")


def test_only_missing_lines_are_added(tmp_path):
    path = tmp_path / "mosquitto.conf"
    path.write_text("log_dest topic\nlog_type subscribe\nsys_interval 0\npersistence true\n")
    lines = ("log_dest topic", "log_type error", "sys_interval 10", "persistence true")
    missing = missing_lines(read_settings(path), lines)
    assert missing == ("log_type error", "sys_interval 10")
    text = add_lines(path.read_text(), missing)
    assert text == (
        "log_dest topic\nlog_type subscribe\n# sys_interval 0\npersistence true\n"
        "\n# for hansa\nlog_type error\nsys_interval 10\n"
    )
    path.write_text(text)
    assert missing_lines(read_settings(path), lines) == ()


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("max_queued_messages 100000", "sys_interval 10"), False),
        (("log_type subscribe",), True),
        (("max_qos 2",), True),
        ((), False),
    ],
)
def test_log_and_listener_settings_need_a_restart(lines, expected):
    assert needs_restart(lines) == expected


@pytest.mark.parametrize(
    ("settings", "dropped", "expected"),
    [
        ({"persistence": ["true"], "max_queued_messages": ["100000"]}, 0, (True, None)),
        ({"max_queued_messages": ["100000"]}, 7, (False, 7)),
        ({}, 0, (False, 0)),
    ],
)
def test_configuration_completes_what_was_found_at_the_broker(settings, dropped, expected):
    found = add_configured(BrokerFindings(dropped_count=dropped, version="x"), settings)
    assert found == BrokerFindings(
        version="x", has_persistence=expected[0], dropped_count=expected[1]
    )
