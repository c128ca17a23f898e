"""The proxy before brokers that only record or repeat bytes."""

import asyncio
import errno
import resource
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest
from cryptography import x509
from tests.agent.broker.proxy.test_tls import write_certificate
from tests.agent.waiting import until

from hansa.agent.alarms import Alarms
from hansa.agent.broker.proxy import ProxyServer, connection, open_files, server
from hansa.agent.broker.proxy.connection import WITHOUT_CONNECT
from hansa.agent.broker.settings import ProxySettings
from hansa.agent.links.link import Address
from hansa.agent.settings import AgentSettings
from hansa.agent.storage import proxy_sessions
from hansa.agent.storage.proxy_sessions import SESSIONS_FILE, SessionFile
from hansa.errors import UsageError
from hansa.observers.proxy.inspector import ConnectionInspector
from hansa.observers.proxy.observer import EARLIER_SESSIONS, OPAQUE_CLIENTS

CONNECT = bytes.fromhex("100d00044d5154540402000000017a")
SUBSCRIBE = bytes.fromhex("820800010003742f3101")
CONNACK, SUBACK = bytes.fromhex("20020000"), bytes.fromhex("9003000101")

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


@dataclass
class Scene:
    """A proxy, its alarms, and what its broker got."""

    server: ProxyServer
    alarms: Alarms
    arrived: list[bytes]
    writers: list[Writer] = field(default_factory=list)

    async def connect(self, port: int = 0, tls_name: str = "") -> tuple[Reader, Writer]:
        """Connect as soon as the proxy serves."""
        context = None
        if tls_name:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1",
                    port or self.server.address.port,
                    ssl=context,
                    server_hostname=tls_name or None,
                )
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
            else:
                self.writers.append(writer)
                return reader, writer


Work = Callable[[Scene], Awaitable[None]]
Serve = Callable[[Reader, Writer, list[bytes]], Awaitable[None]]


async def record(reader: Reader, writer: Writer, arrived: list[bytes]) -> None:
    """Record what comes before and with a CONNECT, and close."""
    data = b""
    while not data.endswith(CONNECT):
        part = await reader.read(1_000)
        if not part:
            break
        data += part
    arrived.append(data)
    writer.close()


async def echo(reader: Reader, writer: Writer, arrived: list[bytes]) -> None:
    """Send everything back."""
    while data := await read_some(reader):
        writer.write(data)
    writer.close()


async def read_some(reader: Reader) -> bytes:
    try:
        return await reader.read(1 << 16)
    except ConnectionError:
        return b""


def run(
    directory: Path,
    settings: Callable[[int], ProxySettings],
    work: Work,
    serve: Serve = record,
    broker_tls: ssl.SSLContext | None = None,
) -> None:
    """Start a proxy before a broker; `settings` gets the broker's port."""

    async def inside() -> None:
        arrived: list[bytes] = []
        broker = await asyncio.start_server(
            lambda reader, writer: serve(reader, writer, arrived), "127.0.0.1", 0, ssl=broker_tls
        )
        port = broker.sockets[0].getsockname()[1]
        alarms = Alarms()
        address = Address("127.0.0.1", port)
        made = settings(port)
        file = SessionFile(
            directory / SESSIONS_FILE,
            made.no_earlier_sessions,
            alarms.setter("proxy sessions not saved"),
        )
        proxy = ProxyServer(made, address, None, alarms, file)
        await proxy.listen()
        task = asyncio.create_task(proxy.run())
        scene = Scene(proxy, alarms, arrived)
        try:
            async with asyncio.timeout(60):
                await work(scene)
        finally:
            for writer in scene.writers:
                writer.close()
            proxy.stop()
            task.cancel()
            broker.close()
            for _ in range(20):  # until the event loop has closed all sockets
                await asyncio.sleep(0.005)

    asyncio.run(inside())


def plain(port: int) -> ProxySettings:
    return ProxySettings(port=0)


def test_broker_gets_the_address_of_the_client_before_its_bytes(tmp_path):
    async def work(scene: Scene) -> None:
        reader, writer = await scene.connect()
        port = writer.get_extra_info("sockname")[1]
        writer.write(CONNECT)
        assert await read_some(reader) == b""
        header = f"PROXY TCP4 127.0.0.1 127.0.0.1 {port} {scene.server.address.port}\r\n"
        assert scene.arrived == [header.encode() + CONNECT]

    run(tmp_path, lambda port: ProxySettings(port=0, proxy_protocol="v1", broker_port=port), work)


def test_clients_beyond_the_open_files_are_refused_with_an_alarm(tmp_path, monkeypatch):
    files = open_files.FILES_RESERVED + 2  # room for one client
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)

    async def work(scene: Scene) -> None:
        proxy, alarms = scene.server, scene.alarms
        assert await is_served(scene)
        refused, _ = await scene.connect()
        assert await read_some(refused) == b""
        assert "1 clients are connected" in alarms.active["proxy full"]
        assert proxy.counters["proxy connections refused: too many open files"] == 1
        monkeypatch.setattr(resource, "getrlimit", lambda which: (4_096, 4_096))
        assert await is_served(scene)
        assert alarms.active == {}

    run(tmp_path, plain, work, echo)


def test_unreachable_broker_raises_an_alarm_until_it_answers(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    async def work(scene: Scene) -> None:
        proxy, alarms = scene.server, scene.alarms
        listener = proxy._listeners[0]  # noqa: SLF001
        broker, listener.broker = listener.broker, Address("127.0.0.1", port)
        reader, _ = await scene.connect()
        assert await read_some(reader) == b""
        assert f"127.0.0.1:{port}" in alarms.active["proxy cannot reach broker"]
        assert proxy.counters["proxy connections ended: broker unreachable"] == 1
        listener.broker = broker
        await scene.connect()
        while alarms.active:
            await asyncio.sleep(0.01)

    run(tmp_path, plain, work)


def test_inspector_that_fails_does_not_hinder_the_client(tmp_path, monkeypatch):
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ConnectionInspector, "receive_from_client", fail)

    async def work(scene: Scene) -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: faults.append(context["exception"])
        )
        reader, writer = await scene.connect()
        writer.write(CONNECT)
        assert await read_some(reader) == b""
        assert scene.arrived == [CONNECT]
        assert [type(each) for each in faults] == [ZeroDivisionError]

    run(tmp_path, plain, work)


# ---------------------------------------------------------------- WebSocket

REQUEST = b"GET /mqtt HTTP/1.1\r\n\r\n"
RESPONSE = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"


def masked(data: bytes) -> bytes:
    """Return a frame of a client; the mask 0 changes nothing."""
    return bytes([0x82, 0x80 | len(data)]) + bytes(4) + data


def framed(data: bytes) -> bytes:
    """Return a frame of a broker."""
    return bytes([0x82, len(data)]) + data


async def serve_websocket(reader: Reader, writer: Writer, arrived: list[bytes]) -> None:
    arrived.append(await reader.readuntil(b"\r\n\r\n"))
    writer.write(RESPONSE)
    arrived.append(await reader.readexactly(len(masked(CONNECT))))
    writer.write(framed(CONNACK))
    arrived.append(await reader.read(1_000))
    writer.write(framed(SUBACK))
    await read_some(reader)
    writer.close()


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_websocket_clients_are_forwarded_unchanged_and_their_filters_known(is_encrypted, tmp_path):
    write_certificate(tmp_path / "proxy.pem")

    async def work(scene: Scene) -> None:
        shown = cast(dict[str, str], scene.server.status()["proxy"])["websocket_address"]
        port = int(shown.rpartition(":")[2])
        reader, writer = await scene.connect(port, "localhost" if is_encrypted else "")
        writer.write(REQUEST)
        assert await reader.readuntil(b"\r\n\r\n") == RESPONSE
        writer.write(masked(CONNECT) + masked(SUBSCRIBE))
        answers = framed(CONNACK) + framed(SUBACK)
        assert await reader.readexactly(len(answers)) == answers
        assert scene.server.observer.subscribed_filters() == ("t/1",)
        assert b"".join(scene.arrived) == REQUEST + masked(CONNECT) + masked(SUBSCRIBE)

    certificate = str(tmp_path / "proxy.pem") if is_encrypted else ""
    run(
        tmp_path,
        lambda port: ProxySettings(port=0, broker_websocket_port=port, tls_certificate=certificate),
        work,
        serve_websocket,
    )


# ---------------------------------------------------------------- TLS


def serial_number(writer: Writer) -> int:
    """Return the number of the certificate that a client sees."""
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(der).serial_number


def test_new_connections_use_a_changed_certificate_and_open_ones_stay(tmp_path):
    path = tmp_path / "proxy.pem"
    write_certificate(path, number=1)

    async def work(scene: Scene) -> None:
        reader, writer = await scene.connect(tls_name="localhost")
        assert serial_number(writer) == 1
        write_certificate(path, number=1 << 50)
        assert scene.server._certificate is not None  # noqa: SLF001
        scene.server._certificate.check()  # noqa: SLF001
        _, other = await scene.connect(tls_name="localhost")
        assert serial_number(other) == 1 << 50
        writer.write(CONNECT)
        assert await reader.readexactly(len(CONNECT)) == CONNECT

    run(tmp_path, lambda port: ProxySettings(port=0, tls_certificate=str(path)), work, echo)


def test_tls_of_listed_names_ends_at_the_broker(tmp_path):
    write_certificate(tmp_path / "proxy.pem", number=1)
    write_certificate(tmp_path / "broker.pem", number=2)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "broker.pem")

    async def work(scene: Scene) -> None:
        reader, writer = await scene.connect(tls_name="OWN.example")
        assert serial_number(writer) == 2
        data = bytes(range(256)) * 4_000
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        _, other = await scene.connect(tls_name="localhost")
        assert serial_number(other) == 1

    def settings(port: int) -> ProxySettings:
        return ProxySettings(
            port=0,
            tls_certificate=str(tmp_path / "proxy.pem"),
            passthrough_names=("own.example",),
            passthrough_port=port,
        )

    run(tmp_path, settings, work, echo, context)


def tls(tmp_path: Path, **more: Any) -> Callable[[int], ProxySettings]:
    write_certificate(tmp_path / "proxy.pem")
    certificate = str(tmp_path / "proxy.pem")
    return lambda port: ProxySettings(port=0, tls_certificate=certificate, **more)


async def is_served(scene: Scene, tls_name: str = "") -> bool:
    """Whether a new client gets back what it sends."""
    reader, writer = await scene.connect(tls_name=tls_name)
    writer.write(CONNECT)
    return await reader.readexactly(len(CONNECT)) == CONNECT


async def end_of(reader: Reader) -> None:
    """Return when the proxy has closed a connection."""
    assert await read_some(reader) == b""


HALF_HELLO = b"\x16\x03\x01\x02\x00\x01"


@pytest.mark.parametrize("sent", [b"", HALF_HELLO])
@pytest.mark.parametrize("names", [(), ("own.example",)])
def test_client_is_served_beside_unfinished_handshakes_and_the_oldest_end(tmp_path, sent, names):
    async def work(scene: Scene) -> None:
        idle = [await scene.connect() for _ in range(5)]
        for _, writer in idle:
            writer.write(sent)
        assert await is_served(scene, "localhost")
        for reader, _ in idle[:3]:
            await end_of(reader)
        assert scene.server.counters[server.UNFINISHED] == 3
        assert not any(reader.at_eof() for reader, _ in idle[3:])

    more = {"passthrough_names": names, "passthrough_port": 1} if names else {}
    run(tmp_path, tls(tmp_path, unfinished_max=3, **more), work, echo)


def test_handshake_that_takes_too_long_is_ended_and_counted(tmp_path):
    async def work(scene: Scene) -> None:
        reader, writer = await scene.connect()
        writer.write(HALF_HELLO)
        await end_of(reader)
        assert scene.server.counters[server.NO_TLS] == 1
        assert scene.server.counters[server.UNFINISHED] == 0

    run(tmp_path, tls(tmp_path, handshake_timeout=0.05), work)


@pytest.mark.parametrize("tls_name", ["", "localhost"])
def test_client_is_served_beside_clients_without_connect(tmp_path, tls_name):
    async def work(scene: Scene) -> None:
        proxy = scene.server
        idle = []
        for number in range(3):
            idle.append(await scene.connect(tls_name=tls_name))
            idle[-1][1].write(CONNECT[: 5 * number])
            while len(proxy.without_connect) + proxy.counters[WITHOUT_CONNECT] <= number:
                await asyncio.sleep(0.01)
        assert await is_served(scene, tls_name)
        await end_of(idle[0][0])
        idle[2][1].write(CONNECT[10:])
        assert await idle[2][0].readexactly(len(CONNECT)) == CONNECT
        # The second one is still there, or was ended before the CONNECT had arrived.
        assert len(proxy.without_connect) + proxy.counters[WITHOUT_CONNECT] == 2

    settings = tls(tmp_path, unfinished_max=2) if tls_name else few
    run(tmp_path, settings, work, echo)


def few(port: int) -> ProxySettings:
    return ProxySettings(port=0, unfinished_max=2)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_client_without_connect_is_ended_when_open_files_run_out(
    is_encrypted, tmp_path, monkeypatch
):
    files = open_files.FILES_RESERVED + 4  # room for two clients
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)

    async def work(scene: Scene) -> None:
        proxy, name = scene.server, "localhost" if is_encrypted else ""
        assert await is_served(scene, name)
        idle, _ = await scene.connect()
        while not len(proxy.without_connect) + len(proxy._handshakes):  # noqa: SLF001
            await asyncio.sleep(0.01)
        assert await is_served(scene, name)
        await end_of(idle)
        assert scene.alarms.active == {}
        refused, _ = await scene.connect()
        await end_of(refused)
        assert set(scene.alarms.active) == {"proxy full"}

    run(tmp_path, tls(tmp_path) if is_encrypted else plain, work, echo)


def test_client_that_leaves_at_once_raises_no_alarm(tmp_path, monkeypatch):
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOTCONN, "its address cannot be read any more")

    monkeypatch.setattr(server, "make_header", fail)

    async def work(scene: Scene) -> None:
        reader, _ = await scene.connect()
        assert await read_some(reader) == b""
        assert scene.alarms.active == {}
        assert scene.server.counters["proxy connections ended: broker unreachable"] == 0

    run(tmp_path, lambda port: ProxySettings(port=0, proxy_protocol="v2", broker_port=port), work)


# ---------------------------------------------------------------- changed settings


def reload(scene: Scene, settings: ProxySettings, *changed: str) -> frozenset[str]:
    names = frozenset(f"[proxy] {name}" for name in changed)
    return scene.server.reload(replace(AgentSettings(), proxy=settings), names)


def test_changed_settings_count_for_new_connections_and_open_ones_stay(tmp_path):
    write_certificate(tmp_path / "proxy.pem")

    async def work(scene: Scene) -> None:
        reader, writer = await scene.connect()
        other: list[bytes] = []
        second = await asyncio.start_server(lambda r, w: record(r, w, other), "127.0.0.1", 0)
        settings = ProxySettings(
            port=1,
            tls_certificate=str(tmp_path / "proxy.pem"),
            broker_port=second.sockets[0].getsockname()[1],
            unfinished_max=5,
        )
        changed = ("port", "tls_certificate", "broker_port", "unfinished_max")
        applied = reload(scene, settings, *changed)
        assert applied == {f"[proxy] {name}" for name in changed[1:]}
        assert scene.server.without_connect.most == 5
        encrypted, encrypted_writer = await scene.connect(tls_name="localhost")
        encrypted_writer.write(CONNECT)
        await end_of(encrypted)
        assert other == [CONNECT]
        writer.write(CONNECT)
        assert await reader.readexactly(len(CONNECT)) == CONNECT
        assert reload(scene, ProxySettings(), "port", "tls_certificate") == {
            "[proxy] tls_certificate"
        }
        assert await is_served(scene)  # by the first broker, without TLS
        second.close()

    run(tmp_path, plain, work, echo)


def test_unusable_certificate_changes_nothing(tmp_path):
    async def work(scene: Scene) -> None:
        settings = ProxySettings(tls_certificate=str(tmp_path / "missing.pem"), unfinished_max=5)
        with pytest.raises(UsageError, match="No such file"):
            reload(scene, settings, "tls_certificate", "unfinished_max")
        assert scene.server.without_connect.most == ProxySettings().unfinished_max
        assert await is_served(scene)

    run(tmp_path, plain, work, echo)


def test_declared_filters_of_unread_clients_can_change(tmp_path):
    names: dict[str, Any] = {"passthrough_names": ("own.example",), "passthrough_port": 1}

    async def work(scene: Scene) -> None:
        observer = scene.server.observer
        reload(scene, ProxySettings(passthrough_filters=("a",), **names), "passthrough_filters")
        assert observer.subscribed_filters() == ("a",)
        reload(scene, ProxySettings(passthrough_filters=("b",), **names), "passthrough_filters")
        assert observer.subscribed_filters() == ("b",)
        assert observer.incomplete_reason == EARLIER_SESSIONS
        await asyncio.sleep(0)
        reload(scene, ProxySettings(no_earlier_sessions=True, **names), "passthrough_filters")
        while observer.incomplete_reason != OPAQUE_CLIENTS:
            await asyncio.sleep(0.01)

    run(tmp_path, plain, work)


# ---------------------------------------------------------------- disks


async def accept(reader: Reader, writer: Writer, arrived: list[bytes]) -> None:
    """Accept a client, and answer its SUBSCRIBE."""
    await reader.readexactly(len(CONNECT))
    writer.write(CONNACK)
    arrived.append(await reader.readexactly(len(SUBSCRIBE)))
    writer.write(SUBACK)
    await read_some(reader)
    writer.close()


def test_client_does_not_wait_for_a_disk_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "SAVE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(server, "CHECK_INTERVAL_S", 0.05)
    lasting = CONNECT.replace(b"MQTT\x04\x02", b"MQTT\x04\x00")
    answers = threading.Event()

    async def work(scene: Scene) -> None:
        observer, file = scene.server.observer, scene.server.file
        await until(lambda: observer.is_complete)
        write = proxy_sessions.SessionFile._write  # noqa: SLF001

        def hang(*arguments: Any) -> None:
            answers.wait(30)
            write(*arguments)

        monkeypatch.setattr(proxy_sessions.SessionFile, "_write", hang)
        reader, writer = await scene.connect()
        writer.write(lasting + SUBSCRIBE)
        expected = CONNACK + SUBACK
        assert await reader.readexactly(len(expected)) == expected
        assert observer.subscribed_filters() == ("t/1",)
        assert observer.incomplete_reason.startswith("sessions of proxy clients cannot be saved")
        assert "does not answer" in scene.alarms.active["proxy sessions not saved"]
        answers.set()
        await until(lambda: observer.is_complete)
        assert scene.alarms.active == {}
        assert file is not None
        assert list(file.sessions["z"].filters) == ["t/1"]

    run(tmp_path, lambda port: ProxySettings(port=0, no_earlier_sessions=True), work, accept)
