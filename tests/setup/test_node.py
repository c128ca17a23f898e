"""Settings, secrets and identity of a new agent."""

import subprocess
from pathlib import Path

import pytest

from hansa.agent.broker.settings import BrokerSettings
from hansa.agent.settings import load_settings
from hansa.errors import UsageError
from hansa.setup.node import (
    NodePlan,
    check_new,
    found_federation,
    member_of,
    save_password,
    saved_password,
    write_settings,
)


def test_written_settings_are_those_of_the_plan(tmp_path):
    state, config = tmp_path / "state", tmp_path / "agent.toml"
    found_federation(state, tmp_path / "ca", "plant", "north")
    broker = BrokerSettings("localhost", 1884, "hansa", log_file='/var/log/a "b".log')
    plan = NodePlan(
        'no"rth', broker, state, "0.0.0.0", 10501, 8081, "north.example:10501", ("south:10500",)
    )
    write_settings(plan, config)
    loaded = load_settings(config, {})
    assert (loaded.name, loaded.state_directory, loaded.broker) == ('no"rth', state, broker)
    assert (loaded.link.host, loaded.link.port) == ("0.0.0.0", 10501)
    assert loaded.link.neighbours == ("south:10500",)
    assert (loaded.admin.port, loaded.topology.advertised_link) == (8081, "north.example:10501")
    assert config.stat().st_mode & 0o777 == 0o644


def test_settings_that_an_agent_would_refuse_are_not_written(tmp_path):
    plan = NodePlan("north", BrokerSettings(), tmp_path / "state", listen="0.0.0.0")
    with pytest.raises(UsageError, match="this node has no certificate"):
        write_settings(plan, tmp_path / "agent.toml")
    assert list(tmp_path.iterdir()) == []


def test_settings_are_never_overwritten(tmp_path):
    config = tmp_path / "etc" / "agent.toml"
    check_new(config)
    config.write_text("")
    with pytest.raises(UsageError, match="exists: this host has an agent"):
        check_new(config)


@pytest.mark.parametrize("password", ["0a1b", "a b#c", 'q"u$o\\t`e', "ü'"])
def test_password_is_read_back_by_us_and_by_the_shell(tmp_path, password):
    config, file = tmp_path / "agent.toml", tmp_path / "agent.env"
    file.write_text("HANSA_LOG=debug\n")
    save_password(config, "earlier")
    save_password(config, password)
    assert saved_password(config, {}) == password
    assert saved_password(config, {"HANSA_BROKER_PASSWORD": "given"}) == "given"
    script = f'. {file}; printf %s "$HANSA_LOG $HANSA_BROKER_PASSWORD"'
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown == f"debug {password}"
    assert file.stat().st_mode & 0o777 == 0o600


def test_password_with_a_line_end_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has a character"):
        save_password(tmp_path / "agent.toml", "a\nHANSA_X=1")


def test_existing_authority_is_used_again(tmp_path):
    ca = tmp_path / "ca"
    first = found_federation(tmp_path / "a", ca, "plant", "a")
    second = found_federation(tmp_path / "b", ca, "", "b")
    assert first.federation == second.federation == "plant"
    with pytest.raises(UsageError, match="is the authority of federation 'plant'"):
        found_federation(tmp_path / "c", ca, "other", "c")


def test_node_with_a_certificate_is_a_member(tmp_path: Path):
    assert member_of(tmp_path) is None
    made = found_federation(tmp_path, tmp_path / "ca", "plant", "a")
    found = member_of(tmp_path)
    assert found is not None and found.certificate == made.certificate
