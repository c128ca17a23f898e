"""SIGHUP: which changed settings are applied, and what happens to those that cannot be."""

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from hansa.agent.reload import SettingsReloader
from hansa.agent.settings import AgentSettings
from hansa.errors import UsageError

OLD = AgentSettings()


class Target:
    """Applies settings of the proxy."""

    def __init__(self) -> None:
        self.applied: list[frozenset[str]] = []

    def reload(self, settings: AgentSettings, changed: frozenset[str]) -> frozenset[str]:
        if settings.proxy.tls_certificate == "bad":
            raise UsageError("no such certificate")
        self.applied.append(frozenset(name for name in changed if name.startswith("[proxy]")))
        return self.applied[-1]


class Reload:
    """A target, its alarm, and settings that change."""

    def __init__(self) -> None:
        self.load: Callable[[], AgentSettings] = lambda: OLD
        self.target = Target()
        self.alarms: list[str] = []
        self._reloader = SettingsReloader(OLD, lambda: self.load())

    def __call__(self, found: AgentSettings) -> None:
        self.load = lambda: found
        self.again()

    def again(self) -> None:
        self._reloader.reload(self.target, self.alarms.append)


@pytest.fixture
def reload() -> Reload:
    return Reload()


def with_proxy(**changes: object) -> AgentSettings:
    return replace(OLD, proxy=replace(OLD.proxy, **changes))  # type: ignore[arg-type]


def test_changed_settings_are_applied_once(reload):
    reload(with_proxy(unfinished_max=7))
    reload.again()
    assert reload.target.applied == [{"[proxy] unfinished_max"}, frozenset()]
    assert reload.alarms == ["", ""]


def test_others_are_named_until_they_are_applied_by_a_restart(reload, caplog):
    changed = replace(OLD, name="new", link=replace(OLD.link, port=1))
    for _ in range(2):
        caplog.clear()
        reload(changed)
        warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
        assert warnings == ["changed settings need a restart: [link] port, name"]


def test_file_that_is_not_valid_changes_nothing_and_raises_an_alarm(reload):
    def refuse() -> AgentSettings:
        raise UsageError("agent.toml: unknown setting 'prot'")

    reload.load = refuse
    reload.again()
    reload(with_proxy(tls_certificate="bad"))
    reload(with_proxy(unfinished_max=7))
    assert reload.alarms == [
        "the old settings stay in use: agent.toml: unknown setting 'prot'",
        "the old settings stay in use: no such certificate",
        "",
    ]
    assert len(reload.target.applied) == 1
