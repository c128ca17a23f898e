"""Findings from a mosquitto.conf without its broker, for `hansa doctor --config mosquitto.conf`."""

from pathlib import Path

from hansa.errors import UsageError
from hansa.testbed.probes.advice import QUEUED_RECOMMENDED, BrokerFindings

DEFAULT_LOG_TYPES = frozenset({"error", "warning", "notice", "information"})
"""Log types of a configuration without `log_type`."""

Settings = dict[str, list[str]]
"""The values of all lines of a setting, by its name."""


def read_settings(path: Path) -> Settings:
    """Read a configuration with the files of its `include_dir`; raise UsageError if a file is not
    readable."""
    settings: Settings = {}
    for line in _text(path).splitlines():
        name, _, value = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if name == "include_dir":
            for included in sorted(_directory(path, value.strip()).glob("*.conf")):
                for key, values in read_settings(included).items():
                    settings.setdefault(key, []).extend(values)
        else:
            settings.setdefault(name, []).append(value.strip())
    return settings


def make_findings(settings: Settings) -> BrokerFindings:
    """Return the findings about a broker with these settings."""
    destinations = settings.get("log_dest", [])
    types = set(settings.get("log_type", DEFAULT_LOG_TYPES))
    has_topic = "topic" in destinations

    def logs(*names: str) -> bool:
        return has_topic and ("all" in types or types.issuperset(names))

    has_connections = _last(settings, "connection_messages", "true") == "true"
    has_file = any(each.startswith("file ") for each in destinations)
    return BrokerFindings(
        logs_subscribe=logs("subscribe"),
        logs_unsubscribe=logs("unsubscribe"),
        logs_connect=logs("notice") and has_connections,
        logs_takeover=logs("notice", "error") and has_connections,
        publishes_counts=_last(settings, "sys_interval", "10") != "0",
        has_history=has_file and ("all" in types or "information" in types),
        has_persistence=_last(settings, "persistence", "false") == "true",
        dropped_count=None if _queued(settings) >= QUEUED_RECOMMENDED else 0,
        bridges=tuple(settings.get("connection", [])),
    )


def _queued(settings: Settings) -> int:
    value = _last(settings, "max_queued_messages", "1000")
    count = int(value) if value.isdigit() else 0
    return count or QUEUED_RECOMMENDED  # 0 means no limit


def _last(settings: Settings, name: str, default: str) -> str:
    return settings.get(name, [default])[-1]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _directory(path: Path, name: str) -> Path:
    return path.parent / name
