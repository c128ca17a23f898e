"""Whether the session at the broker is surely the one of before."""

import asyncio
from pathlib import Path

from hansa.agent.delivery.connect_marker import Greeting


def greeting(directory: Path, problems: list[str] | None = None) -> Greeting:
    return Greeting(directory / "greeting", (problems if problems is not None else []).append)


def doubts(made: Greeting) -> bool:
    return made.in_doubt


def begin(made: Greeting) -> None:
    asyncio.run(made.begin())


def test_a_life_that_ended_while_it_connected_leaves_a_doubt(tmp_path):
    first = greeting(tmp_path)
    assert not doubts(first)
    begin(first)
    assert not doubts(first)
    second = greeting(tmp_path)
    assert doubts(second)
    begin(second)
    second.kept()
    assert not doubts(second)
    assert not doubts(greeting(tmp_path))


def test_an_answer_that_never_came_leaves_a_doubt_and_a_refusal_does_not(tmp_path):
    made = greeting(tmp_path)
    begin(made)
    made.refused()
    begin(made)
    assert not doubts(made)
    begin(made)
    assert doubts(made)
    made.refused()
    assert doubts(made), "that of before is still unknown"
    assert doubts(greeting(tmp_path))
    made.kept()
    assert not doubts(made)


def test_a_disk_that_does_not_take_it_is_told(tmp_path):
    problems: list[str] = []
    made = greeting(tmp_path / "gone", problems)
    begin(made)
    assert problems == [f"cannot write {tmp_path}/gone/greeting: No such file or directory"]
    (tmp_path / "gone").mkdir()
    begin(made)
    assert problems[1:] == [""]
    (tmp_path / "gone" / "greeting").unlink()
    (tmp_path / "gone" / "greeting").mkdir()
    made.kept()
    assert problems[2].startswith("cannot remove")


def test_a_loss_that_is_not_noted_leaves_a_doubt_to_the_next_life_alone(tmp_path):
    made = greeting(tmp_path)
    begin(made)
    made.lost()
    begin(made)
    assert not doubts(made), "it was told"
    made.kept()
    assert doubts(greeting(tmp_path))
    begin(made)
    made.noted()
    assert doubts(greeting(tmp_path)), "the last question has no answer yet"
    made.kept()
    assert not doubts(greeting(tmp_path))
