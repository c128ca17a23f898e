"""The file of expected echoes."""

import asyncio

from hansa.agent.storage.echo_file import EchoFile
from hansa.agent.storage.subscription_file import SubscriptionFile
from hansa.delivery.dedup.echo import SavedEchoes

ECHOES = SavedEchoes([(b"content", 2)], [(7, 1, b"content")], [3, 4])


def test_saved_echoes_are_used_once(tmp_path):
    path = tmp_path / "echoes"
    first = EchoFile(path)
    assert (first.saved_echoes, first.problem) == (None, "")
    first.save(ECHOES)
    second = EchoFile(path)
    assert (second.saved_echoes, second.problem) == (ECHOES, "")
    assert not path.exists(), "after a crash it would be outdated"


def test_nothing_is_saved_without_echoes(tmp_path):
    EchoFile(tmp_path / "echoes").save(None)
    assert list(tmp_path.iterdir()) == []


def test_damaged_file_is_reported_and_removed(tmp_path):
    path = tmp_path / "echoes"
    path.write_bytes(b"\x93\x01")
    file = EchoFile(path)
    assert file.saved_echoes is None
    assert file.problem.startswith(f"{path} is damaged, some publications may be duplicated: ")
    assert not path.exists()


def test_file_that_cannot_be_read_or_written_is_reported(tmp_path):
    path = tmp_path / "echoes"
    path.mkdir()
    alarms: list[str] = []
    file = SubscriptionFile(tmp_path / "subscriptions.log", alarms.append)
    assert file.saved_subscriptions.echoes is None
    assert alarms == [f"cannot read or remove {path}: Is a directory"]
    file.saved_subscriptions.echoes = ECHOES
    asyncio.run(file.stop())
    assert alarms[-1] == "cannot write echoes: Is a directory"
