"""Settings of a mosquitto.conf, and what an agent knows of its broker's queues."""

import pytest

from hansa.agent.broker import mosquitto_conf
from hansa.agent.broker.mosquitto_conf import configured_queue


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", 1_000),
        ("max_queued_messages 5000", 5_000),
        ("max_queued_messages 0", 0),
        ("max_queued_messages 7\nmax_queued_messages 8", 8),
        ("# max_queued_messages 7", 1_000),
    ],
)
def test_queue_of_a_client(line, expected, tmp_path):
    file = tmp_path / "mosquitto.conf"
    file.write_text(f"listener 1883\n{line}\n")
    assert configured_queue(str(file)) == {"queued_max": expected}


def test_agent_without_a_file_knows_nothing():
    assert configured_queue("") == {}


def test_unreadable_file_is_a_problem(tmp_path):
    missing = tmp_path / "mosquitto.conf"
    assert configured_queue(str(missing)) == {
        "config_problem": f"cannot read {missing}: No such file or directory"
    }


def test_changed_file_is_read_again(tmp_path, monkeypatch):
    now = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    file = tmp_path / "mosquitto.conf"
    file.write_text("max_queued_messages 7")
    assert configured_queue(str(file)) == {"queued_max": 7}
    file.write_text("max_queued_messages 8")
    assert configured_queue(str(file)) == {"queued_max": 7}
    now += 2 * mosquitto_conf.FRESH_S
    assert configured_queue(str(file)) == {"queued_max": 8}
