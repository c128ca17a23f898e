"""A real Mosquitto on loopback that is driven packet by packet.

After every input the driver waits until the broker is quiet: it sends a PINGREQ on each connection
and reads until the PINGRESP. Mosquitto is one thread that handles one packet of a connection at a
time and writes its output at once, so all consequences of the packets before have arrived by then.
"""

import contextlib
import signal
import socket
import subprocess
import time
from pathlib import Path

from hansa.mqtt.packet_reader import PacketReader
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.packets import (
    AnyPacket,
    ConnectPacket,
    Packet,
    PingReqPacket,
    PingRespPacket,
    PublishPacket,
)
from hansa.simulator.broker import MosquittoSettings, Restart
from hansa.testbed.mosquitto import free_port

TIMEOUT_S = 5.0
_PROBE = 0


class RealConnection:
    """A client's socket."""

    def __init__(self, port: int, packet: ConnectPacket) -> None:
        """Connect and send CONNECT."""
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = PacketReader(packet.version)
        self._writer = PacketWriter(packet.version)
        self.received: list[AnyPacket] = []
        self.send(packet)

    def send(self, packet: AnyPacket) -> None:
        assert isinstance(packet, PublishPacket | Packet)
        self._socket.sendall(self._writer.encode(packet))

    def read_until_ping(self) -> None:
        """Read until the PINGRESP, which is left out."""
        while not self.received or not isinstance(self.received[-1], PingRespPacket):
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:
                data = b""
            except TimeoutError:
                raise AssertionError(f"no PINGRESP after {self.received}") from None
            if not data:
                raise AssertionError("the broker closed the connection, the model did not")
            self._reader.feed(data, self.received)
        self.received.pop()

    def read_until_closed(self) -> None:
        try:
            while data := self._socket.recv(65536):
                self._reader.feed(data, self.received)
        except ConnectionResetError:
            pass
        except TimeoutError:
            raise AssertionError("the model closed the connection, the broker did not") from None
        self._socket.close()

    def take_received(self) -> list[AnyPacket]:
        received, self.received = self.received, []
        return received

    def cut(self) -> None:
        self._socket.close()


class RealBroker:
    def __init__(
        self, command: tuple[str, ...], directory: Path, settings: MosquittoSettings
    ) -> None:
        """Start a Mosquitto with an empty state."""
        self._port = free_port()
        self._database = directory / "mosquitto.db"
        self._database.unlink(missing_ok=True)
        config = directory / "mosquitto.conf"
        config.write_text(
            f"listener {self._port} 127.0.0.1\n"
            "allow_anonymous true\n"
            "user root\n"
            "sys_interval 0\n"
            "set_tcp_nodelay true\n"
            "log_dest none\n"
            "retain_available true\n"
            f"persistence {str(settings.is_persistent).lower()}\n"
            f"persistence_location {directory}/\n"
            f"max_inflight_messages {settings.max_inflight_messages}\n"
            f"max_queued_messages {settings.max_queued_messages}\n"
            f"allow_duplicate_messages {str(settings.allow_duplicate_messages).lower()}\n"
            f"autosave_interval {settings.autosave_interval}\n"
            f"autosave_on_changes {str(settings.autosave_on_changes).lower()}\n"
        )
        self._command = (*command, "-c", str(config))
        self._connections: dict[int, RealConnection] = {}
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            try:
                self.connect(_PROBE, ConnectPacket("probe", keep_alive=600))
                break
            except ConnectionRefusedError:
                assert self._process.poll() is None, "mosquitto does not start"
                time.sleep(0.001)
        self.settle(set())

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for connection in self._connections.values():
            connection.cut()

    def connect(self, connection_id: int, packet: ConnectPacket) -> None:
        self._connections[connection_id] = RealConnection(self._port, packet)

    def send(self, connection_id: int, packet: AnyPacket) -> None:
        self._connections[connection_id].send(packet)

    def cut(self, connection_id: int) -> None:
        self._connections.pop(connection_id).cut()

    def restart(self, kind: Restart) -> dict[int, list[AnyPacket]]:
        """End the process and start it again; return what clients got before the end."""
        self.settle(set())  # an autosave ends before the next packet is handled
        self._process.send_signal(signal.SIGTERM if kind is Restart.STOPPED else signal.SIGKILL)
        self._process.wait(TIMEOUT_S)
        if kind is Restart.ERASED:
            self._database.unlink(missing_ok=True)
        output = {}
        for connection_id, connection in self._connections.items():
            connection.read_until_closed()
            output[connection_id] = connection.take_received()
        del output[_PROBE]
        self._connections.clear()
        self._start()
        return output

    def settle(self, closed: set[int], actor: int = _PROBE) -> dict[int, list[AnyPacket]]:
        """Wait until the broker has handled the last packet of the actor; return what clients got.

        `closed` are the connections that the broker must have closed.
        """
        for connection_id in closed & self._connections.keys():
            self._connections[connection_id].read_until_closed()
        if actor in closed or actor not in self._connections:
            actor = _PROBE
        self._ping([self._connections[actor]])
        self._ping([found for each, found in self._connections.items() if each not in closed])
        output = {each: found.take_received() for each, found in self._connections.items()}
        del output[_PROBE]
        for connection_id in closed:
            self._connections.pop(connection_id, None)
        return output

    def _ping(self, connections: list[RealConnection]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for connection in connections:
                connection.send(PingReqPacket())
        for connection in connections:
            connection.read_until_ping()
