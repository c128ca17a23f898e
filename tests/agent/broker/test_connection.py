"""The connection against scripted brokers."""

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.waiting import PATIENCE, until

from hansa.agent.broker import connection as connection_module
from hansa.agent.broker.connection import BrokerAddress, Connection
from hansa.agent.broker.settings import (
    BrokerSettings,
    ProxySettings,
    RestSettings,
    TopicsSettings,
    check_broker,
)
from hansa.agent.storage import connect_marker
from hansa.delivery.connect_attempts import ConnectAttempts
from hansa.delivery.context import Context
from hansa.errors import UsageError
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.types import Version

V5_ACCEPTED = b"\x20\x03\x00\x00\x00"
V5_REFUSED = b"\x20\x03\x00\x87\x00"
V311_ACCEPTED = b"\x20\x02\x00\x00"
V311_UNKNOWN_VERSION = b"\x20\x02\x00\x01"

REFUSALS = 3
"""Consecutive silent closes after which the client tries MQTT 3.1.1."""

SHORT_S = 0.5
"""Timeout where no answer is expected; expected answers must arrive within it."""

MUCH_BYTES = 1 << 20
"""Several times the capacity of the socket buffers."""


def level(connect: bytes) -> int:
    """The protocol level of a CONNECT: 5 or 4."""
    return connect[8]


class Scene:
    """A broker that answers each CONNECT by its level, and the connection to it. It closes the
    connection after an empty answer and keeps it open after None."""

    def __init__(self, answer: Callable[[int], bytes | None]) -> None:
        self.levels: list[int] = []
        self.clean_flags: list[bool] = []
        self.reported: list[effects.Effect] = []
        self.writers: list[asyncio.StreamWriter] = []
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        connect = await reader.read(1_000)
        if not connect:  # closed before CONNECT
            writer.close()
            return
        self.levels.append(level(connect))
        self.clean_flags.append(bool(connect[9] & 2))
        answer = self._answer(self.levels[-1])
        writer.write(answer or b"")
        if answer == b"":
            writer.close()


async def rounds() -> None:
    """Let the event loop run pending callbacks."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(
    monkeypatch: Any,
    scene: Scene,
    work: Callable[[Connection], Any],
    answer_timeout: float = PATIENCE,
    keep_alive: int = 30,
    keeps_3_1_1_session: bool = False,
) -> None:
    monkeypatch.setattr(connection_module, "SILENT_REFUSALS_MAX", REFUSALS)
    monkeypatch.setattr(connection_module, "RETRY_MIN_S", 0.001)
    monkeypatch.setattr(connection_module, "RETRY_MAX_S", 0.01)

    async def inside() -> None:
        server = await asyncio.start_server(scene.serve, "127.0.0.1", 0)
        address = BrokerAddress("127.0.0.1", server.sockets[0].getsockname()[1])
        options = ConnectOptions(
            client_id="x",
            answer_timeout=answer_timeout,
            keep_alive=keep_alive,
            keeps_3_1_1_session=keeps_3_1_1_session,
        )
        made = Connection(address, options, scene.reported.append, random.Random(1))
        task = asyncio.create_task(made.run())
        try:
            await work(made)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            made.abort()
            server.close()
            await rounds()  # `serve` runs for accepted connections
            for writer in scene.writers:
                writer.close()
            await rounds()  # sockets are closed

    asyncio.run(inside())


async def connected(made: Connection) -> None:
    await until(lambda: not made.problem, "connected")


def test_mqtt_5_is_tried_first(monkeypatch):
    scene = Scene(lambda level: V5_ACCEPTED)
    run(monkeypatch, scene, connected)
    assert scene.levels == [5]
    assert isinstance(scene.reported[0], effects.Connected)


def test_broker_without_mqtt_5_gets_3_1_1(monkeypatch):
    scene = Scene(lambda level: V311_UNKNOWN_VERSION if level == 5 else V311_ACCEPTED)
    run(monkeypatch, scene, connected)
    assert scene.levels == [5, 4]


@pytest.mark.parametrize("keeps_session", [False, True])
def test_session_of_3_1_1_is_clean_unless_it_is_to_last(monkeypatch, keeps_session):
    scene = Scene(lambda level: V311_UNKNOWN_VERSION if level == 5 else V311_ACCEPTED)
    run(monkeypatch, scene, connected, keeps_3_1_1_session=keeps_session)
    assert scene.clean_flags == [False, not keeps_session]
    (granted,) = [each for each in scene.reported if isinstance(each, effects.Connected)]
    assert (granted.broker_limits.session_expiry > 0) is keeps_session


def test_session_of_mqtt_5_is_not_continued_with_3_1_1(monkeypatch):
    scene = Scene(lambda level: V311_UNKNOWN_VERSION if level == 5 else V311_ACCEPTED)

    async def work(made: Connection) -> None:
        made.mark_version_known(Version.V5)
        await connected(made)

    run(monkeypatch, scene, work, keeps_3_1_1_session=True)
    assert (scene.levels, scene.clean_flags) == ([5, 4], [False, True])


def test_silent_close_falls_back_to_3_1_1_after_retries(monkeypatch):
    scene = Scene(lambda level: b"" if level == 5 else V311_ACCEPTED)
    run(monkeypatch, scene, connected)
    assert scene.levels == [5] * REFUSALS + [4]


def test_broker_that_accepted_3_1_1_gets_it_again_soon(monkeypatch):
    scene = Scene(lambda level: b"" if level == 5 else V311_ACCEPTED)

    async def work(made: Connection) -> None:
        await connected(made)
        scene.levels.clear()
        scene.writers[-1].close()
        await until(lambda: 4 in scene.levels, "attempts")

    monkeypatch.setattr(connection_module, "SILENT_REFUSALS_AGAIN_MAX", REFUSALS - 1)
    run(monkeypatch, scene, work)
    assert scene.levels == [5] * (REFUSALS - 1) + [4]


def test_unanswered_mqtt_5_connect_falls_back_to_3_1_1(monkeypatch):
    scene = Scene(lambda level: None if level == 5 else V311_ACCEPTED)
    run(monkeypatch, scene, connected, SHORT_S)
    assert scene.levels == [5, 4]


@pytest.mark.parametrize("silence", [None, b""], ids=["hangs", "closes"])
def test_broker_with_our_session_is_not_tried_with_3_1_1(monkeypatch, silence):
    """A 3.1.1 session would be clean and end the existing session."""
    scene = Scene(lambda level: silence if level == 5 else V311_ACCEPTED)

    async def work(made: Connection) -> None:
        made.mark_version_known(Version.V5)
        await until(lambda: len(scene.levels) > REFUSALS + 1, "attempts")

    run(monkeypatch, scene, work, SHORT_S)
    assert set(scene.levels) == {5}


@pytest.mark.parametrize("silence", [None, b""], ids=["hangs", "closes"])
def test_broker_that_accepted_mqtt_5_is_not_tried_with_3_1_1(monkeypatch, silence):
    scene = Scene(lambda level: V5_ACCEPTED if len(scene.levels) == 1 else silence)

    async def work(made: Connection) -> None:
        await connected(made)
        scene.writers[0].close()
        await until(lambda: len(scene.levels) > REFUSALS + 2, "attempts")

    run(monkeypatch, scene, work, SHORT_S)
    assert set(scene.levels) == {5}


def test_broker_that_refuses_mqtt_5_after_accepting_it_gets_3_1_1(monkeypatch):
    def answer(level: int) -> bytes:
        if len(scene.levels) == 1:
            return V5_ACCEPTED
        return V311_UNKNOWN_VERSION if level == 5 else V311_ACCEPTED

    scene = Scene(answer)

    async def work(made: Connection) -> None:
        await connected(made)
        scene.writers[0].close()
        await until(lambda: len(scene.levels) == 3 and not made.problem, "connected again")

    run(monkeypatch, scene, work)
    assert scene.levels == [5, 5, 4]


def test_refusal_is_reported_once_and_retried(monkeypatch):
    scene = Scene(lambda level: V5_REFUSED)

    async def work(made: Connection) -> None:
        await until(lambda: len(scene.levels) >= 4, "four attempts")
        assert made.problem
        (reported,) = scene.reported  # so far: the end of the test aborts one more attempt
        assert isinstance(reported, effects.ConnectRefused)

    run(monkeypatch, scene, work)


@pytest.mark.parametrize(
    ("version_5", "version_3", "code"),
    [
        (b"\x20\x03\x00\x86\x00", b"", "0x86 bad user name or password"),
        (b"\x20\x03\x00\x87\x00", b"", "0x87 not authorized"),
        (V311_UNKNOWN_VERSION, b"\x20\x02\x00\x04", "0x04 bad user name or password"),
        (V311_UNKNOWN_VERSION, b"\x20\x02\x00\x05", "0x05 not authorized"),
    ],
)
def test_refused_login_is_reported_with_advice_and_retried(monkeypatch, version_5, version_3, code):
    scene = Scene(lambda level: version_5 if level == 5 else version_3)

    async def tried_again(made: Connection) -> None:
        await until(lambda: len(scene.levels) >= 6, "attempts")
        assert made.problem == (
            f"login refused by the broker ({code}), tried without a user name: "
            "check the user name and the password"
        )
        (refused,) = scene.reported  # the attempt aborted by the end of the test is not counted
        assert isinstance(refused, effects.ConnectRefused)

    run(monkeypatch, scene, tried_again)


def test_lost_connection_is_reestablished_at_once(monkeypatch):
    scene = Scene(lambda level: V5_ACCEPTED)

    async def work(made: Connection) -> None:
        while len(scene.levels) < 5:
            count = len(scene.levels)
            await until(lambda: len(scene.levels) > count, "connected again")  # noqa: B023
            scene.writers[-1].close()

    run(monkeypatch, scene, work)
    assert [type(each).__name__ for each in scene.reported[:4]] == ["Connected", "Disconnected"] * 2


def test_invalid_request_ends_the_connection(monkeypatch):
    scene = Scene(lambda level: V5_ACCEPTED)

    async def work(connection: Connection) -> None:
        await until(lambda: effects.Connected in map(type, scene.reported))
        with pytest.raises(ValueError, match="not 1 to"):
            connection.submit(inputs.Publish([packets.PublishPacket("t", b"", 1, packet_id=0)]))
        await until(lambda: len(scene.levels) == 2)

    run(monkeypatch, scene, work)


def test_reconnection_happens_even_if_owner_raises(monkeypatch):
    scene = Scene(lambda level: V5_ACCEPTED)

    class Failing(list[effects.Effect]):
        def append(self, effect: effects.Effect) -> None:
            super().append(effect)
            if isinstance(effect, effects.Disconnected):
                raise ZeroDivisionError("by zero")

    async def work(connection: Connection) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: None)
        await until(lambda: not connection.problem, "connected")
        scene.writers[0].close()
        await until(lambda: len(scene.levels) == 2, "connected again")

    scene.reported = Failing()
    run(monkeypatch, scene, work)


def test_connection_to_broker_that_stops_reading_is_closed(monkeypatch):
    scene = Scene(lambda level: V5_ACCEPTED)
    monkeypatch.setattr(connection_module, "CLOSE_GRACE_S", SHORT_S)

    async def work(made: Connection) -> None:
        await connected(made)
        much = packets.PublishPacket("a", bytes(MUCH_BYTES), 0)
        made.submit(inputs.Publish([much] * 12))
        assert made.waiting_bytes
        count = len(scene.levels)
        await until(lambda: len(scene.levels) > count, "connected again")

    run(monkeypatch, scene, work, answer_timeout=1.0, keep_alive=1)


class SlowDisk:
    """Syncs on request of the test."""

    def __init__(self, monkeypatch: Any) -> None:
        self.is_asked, self.syncs = threading.Event(), threading.Event()
        monkeypatch.setattr(connect_marker, "sync_directory", self._sync)

    def _sync(self, path: Path) -> None:
        self.is_asked.set()
        assert self.syncs.wait(PATIENCE), "the loop waits for the disk"


class Hooks:
    """Connect hooks as the delivery service has them, with the pure core's decisions."""

    def __init__(self, path: Path) -> None:
        self._marker = connect_marker.ConnectMarker(path, lambda problem: None)
        self._context = Context(lambda: 0)
        self.attempts = ConnectAttempts(self._context, is_uncertain=False)

    async def before_connect(self) -> None:
        await self._marker.create()
        self.attempts.on_connect_started()

    def on_connect_refused(self) -> None:
        self.attempts.on_connect_refused()

    @property
    def is_uncertain(self) -> bool:
        """Whether a session that the broker reports now would count as uncertain."""
        self.attempts.on_session_kept()
        return self._context.counters["broker sessions uncertain"] > 0


def test_connect_waits_for_the_disk_and_the_loop_does_not(monkeypatch, tmp_path):
    scene, disk = Scene(lambda level: V5_ACCEPTED), SlowDisk(monkeypatch)

    async def work(made: Connection) -> None:
        made.connect_hooks = Hooks(tmp_path / "connecting")
        await until(disk.is_asked.is_set, "the mark on disk")
        await rounds()
        assert (len(scene.writers), scene.levels) == (1, [])
        disk.syncs.set()
        await connected(made)

    run(monkeypatch, scene, work)
    assert scene.levels == [5]


def test_connection_lost_before_connect_is_reported_without_uncertainty(monkeypatch, tmp_path):
    scene, disk = Scene(lambda level: V5_ACCEPTED), SlowDisk(monkeypatch)

    async def work(made: Connection) -> None:
        made.connect_hooks = hooks = Hooks(tmp_path / "connecting")
        await until(lambda: scene.writers and disk.is_asked.is_set(), "the mark on disk")
        scene.writers[0].close()
        await until(lambda: made.problem == "closed by the broker", "the end")
        assert not scene.levels
        disk.syncs.set()
        await connected(made)
        assert not hooks.is_uncertain

    run(monkeypatch, scene, work)
    assert [type(each) for each in scene.reported[:2]] == [
        effects.ConnectRefused,
        effects.Connected,
    ]


@pytest.mark.parametrize("fault", [ConnectionResetError(), RuntimeError()], ids=repr)
def test_disconnection_is_reported_even_if_its_error_has_no_text(monkeypatch, fault):
    scene = Scene(lambda level: V5_ACCEPTED)

    async def work(made: Connection) -> None:
        await connected(made)
        made.connection_lost(fault)
        assert made.problem == type(fault).__name__

    run(monkeypatch, scene, work)
    assert scene.reported[1] == effects.Disconnected(None, type(fault).__name__, by_broker=False)


def test_protocol_violation_is_reported_and_reconnection_backs_off(monkeypatch):
    scene = Scene(lambda level: V5_ACCEPTED + b"\xff\xff")
    pauses: list[float] = []

    async def work(made: Connection) -> None:
        uniform = made._rng.uniform  # noqa: SLF001
        monkeypatch.setattr(made, "_rng", RecordingRandom(pauses, made, uniform))
        await until(lambda: len(pauses) >= 6, "six attempts")

    run(monkeypatch, scene, work)
    assert isinstance(scene.reported[1], effects.ProtocolViolation)
    assert pauses == sorted(pauses) and pauses[-1] == connection_module.RETRY_MAX_S


class RecordingRandom:
    """Random source that records the back-off it jitters."""

    def __init__(
        self, pauses: list[float], made: Connection, uniform: Callable[..., float]
    ) -> None:
        self._pauses, self._made, self._uniform = pauses, made, uniform

    def uniform(self, low: float, high: float) -> float:
        self._pauses.append(self._made._retry_delay)  # noqa: SLF001
        return self._uniform(low, high)


@pytest.mark.parametrize(
    ("session", "overlap_copies", "is_kept"),
    [
        ("auto", "each", True),
        ("auto", "once", False),
        ("lasting", "once", True),
        ("clean", "each", False),
    ],
)
def test_session_of_3_1_1_lasts_by_default_if_the_broker_sends_each_copy(
    session, overlap_copies, is_kept
):
    settings = BrokerSettings(session_3_1_1=session, overlap_copies=overlap_copies)
    check_broker(settings, ProxySettings(), RestSettings(), TopicsSettings())
    assert settings.keeps_3_1_1_session is is_kept


def test_unknown_session_of_3_1_1_is_refused():
    settings = BrokerSettings(session_3_1_1="long")
    with pytest.raises(UsageError, match="session_3_1_1 must be auto, lasting or clean, not 'long"):
        check_broker(settings, ProxySettings(), RestSettings(), TopicsSettings())
