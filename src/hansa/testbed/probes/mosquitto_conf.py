"""Findings from a mosquitto.conf without its broker, for `hansa doctor --config mosquitto.conf`."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hansa.agent.broker.mosquitto_conf import ConfSettings, last_value, queued_max
from hansa.console.federation_checks import QUEUED_RECOMMENDED
from hansa.errors import UsageError
from hansa.testbed.probes.advice import BrokerFindings

DEFAULT_LOG_TYPES = frozenset({"error", "warning", "notice", "information"})
"""Log types of a configuration without `log_type`."""


def make_findings(settings: ConfSettings) -> BrokerFindings:
    destinations = settings.get("log_dest", [])
    types = set(settings.get("log_type", DEFAULT_LOG_TYPES))
    has_topic = "topic" in destinations

    def logs(*names: str) -> bool:
        return has_topic and ("all" in types or types.issuperset(names))

    has_connections = last_value(settings, "connection_messages", "true") == "true"
    has_file = any(each.startswith("file ") for each in destinations)
    return BrokerFindings(
        logs_subscribe=logs("subscribe"),
        logs_unsubscribe=logs("unsubscribe"),
        logs_connect=logs("notice") and has_connections,
        logs_takeover=logs("notice", "error") and has_connections,
        publishes_counts=last_value(settings, "sys_interval", "10") != "0",
        has_history=has_file and ("all" in types or "information" in types),
        has_persistence=last_value(settings, "persistence", "false") == "true",
        dropped_count=0 if 0 < queued_max(settings) < QUEUED_RECOMMENDED else None,
        bridges=tuple(settings.get("connection", [])),
    )


def add_configured(findings: BrokerFindings, settings: ConfSettings) -> BrokerFindings:
    """Return findings at a running broker with those that only its configuration shows."""
    configured = make_findings(settings)
    is_short = configured.dropped_count is not None
    return replace(
        findings,
        has_persistence=configured.has_persistence,
        dropped_count=findings.dropped_count if findings.dropped_count or is_short else None,
    )


REPEATED = ("log_dest", "log_type")
"""Settings of which every line counts; of others the last one does."""

RELOADED = (
    *("autosave_interval", "connection_messages", "max_inflight_messages"),
    *("max_queued_messages", "persistence", "sys_interval"),
)
"""Settings that take full effect when Mosquitto gets SIGHUP. It then also logs as configured, but
only new subscriptions, so log settings need a restart."""


def missing_lines(settings: ConfSettings, lines: Sequence[str]) -> tuple[str, ...]:
    """Return those of the lines that a configuration does not have."""
    return tuple(
        line
        for line in lines
        for name, _, value in [line.partition(" ")]
        if (
            value not in settings.get(name, [])
            if name in REPEATED
            else last_value(settings, name, "") != value
        )
    )


def needs_restart(lines: Sequence[str]) -> bool:
    """Whether the broker must be restarted for added lines; otherwise SIGHUP is enough."""
    return any(line.partition(" ")[0] not in RELOADED for line in lines)


def add_lines(text: str, lines: Sequence[str]) -> str:
    """Return a configuration with lines added. Earlier values of settings that count once become
    comments."""
    names = {line.partition(" ")[0] for line in lines}.difference(REPEATED)
    kept = [
        f"# {line}" if line.strip().partition(" ")[0] in names else line
        for line in text.splitlines()
    ]
    return "".join(f"{line}\n" for line in (*kept, "", "# for hansa", *lines))


def change_file(path: Path, lines: Sequence[str]) -> Path:
    """Add lines to a configuration; return the path of a copy of the previous one."""
    copy = path.with_name(f"{path.name}.before-hansa")
    try:
        text = path.read_text(errors="surrogateescape")
        shutil.copy2(path, copy)
        path.write_text(add_lines(text, lines), errors="surrogateescape")
    except OSError as error:
        raise UsageError(f"cannot change {path}: {error.strerror}") from error
    return copy
