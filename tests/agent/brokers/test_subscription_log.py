"""What the agent's session is subscribed to, across lives."""

from pathlib import Path

from hansa.agent.brokers import subscription_log
from hansa.agent.brokers.subscription_log import ENDED, LEAVING, SubscriptionLog


def opened(directory: Path) -> SubscriptionLog:
    return SubscriptionLog(directory / "log", lambda problem: None)


def test_a_new_life_knows_filters_in_their_order(tmp_path):
    log = opened(tmp_path)
    log.write([("a/#", 1), ("b", 2), ("c", 3)])
    log.write([("b", LEAVING), ("a/#", ENDED)])
    again = opened(tmp_path)
    assert list(again.held.items()) == [("b", LEAVING), ("c", 3)]
    log.close()
    again.close()


def test_a_torn_line_is_left_out(tmp_path):
    path = tmp_path / "log"
    path.write_text('["a", 1]\n["b", ')
    log = opened(tmp_path)
    assert log.held == {"a": 1}
    log.write([("c", 2)])
    assert path.read_text() == '["a", 1]\n["c", 2]\n'
    log.close()


def test_a_session_that_is_lost_leaves_nothing(tmp_path):
    log = opened(tmp_path)
    log.write([("a", 1)])
    log.start_over()
    log.write([("b", 1)])
    log.close()
    again = opened(tmp_path)
    assert again.held == {"b": 1}
    again.close()


def test_the_file_does_not_grow_with_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(subscription_log, "LINES_SPARE", 10)
    log = opened(tmp_path)
    for number in range(1, 101):
        log.write([("a", number), ("a", ENDED)])
    log.write([("b", 101)])
    assert len((tmp_path / "log").read_text().splitlines()) <= 13
    log.close()


def test_what_cannot_be_written_is_told_and_written_with_the_next_change(tmp_path):
    problems: list[str] = []
    directory = tmp_path / "state"
    directory.mkdir()
    log = SubscriptionLog(directory / "log", problems.append)
    (directory / "log").unlink()
    directory.rmdir()
    log.start_over()
    assert problems == ["", f"cannot write {directory / 'log'}: No such file or directory"]
    log.write([("a", 1)])
    directory.mkdir()
    log.write([("b", 2)])
    assert problems[-1] == ""
    assert (directory / "log").read_text() == '["a", 1]\n["b", 2]\n'
    log.close()
