"""One client of the proxy: its connection, and the one to the broker on its behalf.

Bytes are forwarded in the wake-up that read them. Each side is read only as fast as the other one
takes it, so the proxy holds a bounded amount per client (`PACKET_BYTES_MAX`, `PENDING_BYTES_MAX`).

The filters of a persistent session are on disk before the broker sees the SUBSCRIBE that asks for
them: a crash in between would otherwise leave a session at the broker with a filter that the next
run does not know. For the same reason nothing but the CONNECT is forwarded before the broker has
answered it. If filters cannot be saved, an alarm is raised and the client is served all the same.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

from hansa.agent import tasks
from hansa.agent.sockets import ByteTransport, SocketTransport, acknowledged_bytes
from hansa.agent.storage.proxy_sessions import SessionFile
from hansa.agent.unfinished import UnfinishedConnections
from hansa.observers.base import NO_CHANGE, ObserverOutput
from hansa.observers.proxy.inspector import ConnectionInspector
from hansa.observers.proxy.observer import ProxyObserver, SessionChange
from hansa.observers.proxy.scanner import PACKET_BYTES_MAX, InvalidStream
from hansa.observers.proxy.websocket import ConnectGate

EARLY_BYTES_MAX = 2 * PACKET_BYTES_MAX
"""Bytes of a client that wait for the broker's answer to its CONNECT; with more it is not read."""

STALLED_S = 60.0
"""Seconds after which a client or a broker that reads nothing is disconnected. Slow radio may need
minutes for what waits here, so a slow one stays."""

CLOSE_GRACE_S = 5.0
"""Seconds that the last bytes have to leave when a connection is closed."""

SAVE_TIMEOUT_S = 5.0
"""Seconds that a client waits for a disk that does not answer."""

BUFFER_BYTES = 1 << 18
"""Most bytes of one read."""

WITHOUT_CONNECT = "proxy connections ended: too many without CONNECT"

FAULT = "a fault of the proxy; see the alarm internal error"


class ProxyState:
    """What all clients of a proxy share."""

    def __init__(
        self, observer: ProxyObserver, file: SessionFile | None, unfinished_max: int
    ) -> None:
        self.observer = observer
        self.file = file
        self.on_observer_output: Callable[[ObserverOutput], None] = lambda output: None
        """Is called when subscriptions or deadlines of the observer have changed."""
        self.counters: Counter[str] = Counter()
        self.without_connect = UnfinishedConnections(unfinished_max, self.counters, WITHOUT_CONNECT)
        """Clients, by number, whose CONNECT is not complete although the broker is there."""
        self.clients: dict[int, ProxyConnection] = {}
        """Open connections of clients, by number."""
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        """What a connection reads into; it is forwarded before the next one reads."""
        self.now: Callable[[], float] = asyncio.get_running_loop().time
        """The clock of the event loop, which is costly to look up for each publication."""

    def on_closed(self, number: int, output: ObserverOutput) -> None:
        """A client connection has ended."""
        self.clients.pop(number, None)
        self.without_connect.remove(number)
        self.on_observer_output(output)
        self.save_soon()

    def save_soon(self) -> None:
        """Save what has changed, without waiting for it."""
        if changes := self.take_changes():
            tasks.start_task(self.save(changes))

    def take_changes(self) -> Sequence[SessionChange]:
        """Return the changes of persistent sessions since the last call."""
        if not self.observer.changes:
            return ()
        changes, self.observer.changes = self.observer.changes, []
        return changes

    async def save(self, changes: Sequence[SessionChange]) -> None:
        """Return when changed sessions are on disk, or an alarm has been raised and the observer is
        not complete. A disk that hangs must not keep clients waiting."""
        if self.file is None:
            return
        saving = tasks.start_task(self.file.save(changes))
        done, _ = await asyncio.wait([saving], timeout=SAVE_TIMEOUT_S)
        if not done:
            self.file.report_late()
        self.note_file_state(self.file)

    def note_file_state(self, file: SessionFile) -> None:
        """Let the observer know whether the file can be trusted."""
        self.observer.set_file_problem(file.problem)
        output = self.observer.drain(self.now())
        if output is not NO_CHANGE:
            self.on_observer_output(output)


class ProxyConnection(asyncio.BufferedProtocol):
    """One of the two connections of a client. `peer` is the other one, once it is open."""

    transport: ByteTransport
    peer: "ProxyConnection | None" = None
    _pause_count = 0  # reasons not to read: the other side is slow, sessions are being saved
    _abort_timer: asyncio.TimerHandle | None = None  # while the other side does not read

    def __init__(self, state: ProxyState) -> None:
        self._state = state

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(ByteTransport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._state.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.receive(bytes(self._state.buffer[:nbytes]))

    def receive(self, data: bytes) -> None:
        """Bytes have arrived on this connection."""
        if self.peer is not None:
            self.peer.write(data)

    def receive_from_broker(self, data: bytes) -> None:
        """Bytes have arrived on the connection to the broker."""
        self.write(data)

    def pause_writing(self) -> None:
        self._await_progress()
        if self.peer is not None:
            self.peer.pause_reading()

    def resume_writing(self) -> None:
        self._cancel_abort()
        if self.peer is not None:
            self.peer.resume_reading()

    def pause_reading(self) -> None:
        self._pause_count += 1
        if self._pause_count == 1 and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        self._pause_count -= 1
        if self._pause_count == 0 and not self.transport.is_closing():
            self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_abort()
        if self.peer is not None:
            self.peer.close()

    def close(self) -> None:
        """Close when what was written has left, or after a while."""
        self.transport.close()
        self._cancel_abort()
        self._abort_timer = asyncio.get_running_loop().call_later(
            CLOSE_GRACE_S, self.transport.abort
        )

    def abort(self) -> None:
        """Close both connections now."""
        self.transport.abort()
        if self.peer is not None:
            self.peer.transport.abort()

    def on_broker_connected(self, broker: "ProxyConnection") -> None:
        """The broker can be written to."""
        self.peer = broker

    def _await_progress(self) -> None:
        received = acknowledged_bytes(self.transport.get_extra_info("socket"))
        self._abort_timer = asyncio.get_running_loop().call_later(
            STALLED_S, self._check_progress, received
        )

    def _check_progress(self, before: int) -> None:
        if acknowledged_bytes(self.transport.get_extra_info("socket")) > before:
            self._await_progress()
        else:
            self.abort()

    def _cancel_abort(self) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
            self._abort_timer = None


class OpaqueClient(ProxyConnection):
    """A client whose TLS ends at the broker: its bytes cannot be read."""

    def __init__(self, state: ProxyState, number: int) -> None:
        super().__init__(state)
        self._number = number

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._state.clients[self._number] = self
        self.pause_reading()

    def on_broker_connected(self, broker: ProxyConnection) -> None:
        super().on_broker_connected(broker)
        self.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._state.on_closed(self._number, NO_CHANGE)


class InspectedClient(ProxyConnection):
    """The connection of a client whose packets the proxy reads."""

    def __init__(self, state: ProxyState, number: int, is_websocket: bool) -> None:
        super().__init__(state)
        self._number = number
        self._is_websocket = is_websocket
        self.inspector = ConnectionInspector(state.observer, number, is_websocket)
        self._gate: ConnectGate | None = ConnectGate(is_websocket)  # until CONNECT is forwarded
        self._early = b""  # arrived before the broker answered
        self._is_paused_early = False
        self._is_answered = False
        self._unsaved: list[bytes] = []  # wait until sessions are saved

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._state.clients[self._number] = self

    def receive(self, data: bytes) -> None:
        if self._is_answered:
            self._forward(data)
            return
        self._early += data
        if len(self._early) > EARLY_BYTES_MAX and not self._is_paused_early:
            self._is_paused_early = True
            self.pause_reading()
        self._forward_connect()

    def on_broker_connected(self, broker: ProxyConnection) -> None:
        super().on_broker_connected(broker)
        self._forward_connect()
        if self._gate is not None:
            connected = self.transport.get_extra_info("socket")
            self._state.without_connect.add(self._number, connected, self.abort)

    def receive_from_broker(self, data: bytes) -> None:
        self.write(data)  # nothing that it says must be saved before
        self._inspect(self.inspector.receive_from_broker, data)
        self._state.save_soon()
        if not self._is_answered and self.inspector.is_answered:
            self._on_answered()

    def _on_answered(self) -> None:
        """Forward everything from now on."""
        self._is_answered = True
        self._gate = None
        early, self._early = self._early, b""
        if early:
            self._forward(early)
        if self._is_paused_early:
            self._is_paused_early = False
            self.resume_reading()
        self._forward_publications()

    def _forward_publications(self) -> None:
        """Let single publications pass between the two sockets without a call of this class. They
        overtake nothing: while bytes wait here, the socket that they came from is not read."""
        assert self.peer is not None
        client, broker = self.transport, self.peer.transport
        if (
            isinstance(client, SocketTransport)
            and isinstance(broker, SocketTransport)
            and not self._is_websocket
        ):
            buffer, inspector = self._state.buffer, self.inspector
            client.forward_to(broker, buffer, inspector.from_client.skips)
            broker.forward_to(client, buffer, inspector.from_broker.skips)

    def _forward_connect(self) -> None:
        if self.peer is None or self._gate is None:
            return
        try:
            size, is_complete = self._gate.find_end(self._early)
        except InvalidStream:
            size, is_complete = len(self._early), True
        if is_complete:
            self._gate = None
            self._state.without_connect.remove(self._number)
        data, self._early = self._early[:size], self._early[size:]
        if data:
            self._forward(data)

    def _forward(self, data: bytes) -> None:
        assert self.peer is not None
        self._inspect(self.inspector.receive_from_client, data)
        if self._unsaved:
            self._unsaved.append(data)
        elif changes := self._state.take_changes():
            self._unsaved.append(data)
            self.pause_reading()
            tasks.start_task(self._forward_when_saved(changes))
        else:
            self.peer.write(data)

    async def _forward_when_saved(self, changes: Sequence[SessionChange]) -> None:
        while changes:
            await self._state.save(changes)
            changes = self._state.take_changes()
        unsaved, self._unsaved = self._unsaved, []
        if self.peer is not None:
            self.peer.write(b"".join(unsaved))
        self.resume_reading()

    def _inspect(self, read: Callable[[bytes, float], ObserverOutput], data: bytes) -> None:
        """Let the inspector read along. If it fails, the client is served all the same."""
        now = self._state.now()
        try:
            output = read(data, now)
        except Exception as fault:  # noqa: BLE001
            tasks.report_fault(fault)
            self.inspector.stop_following(FAULT)
            self.inspector.is_answered = True  # nothing waits for it any longer
            output = self._state.observer.drain(now)
        if output is not NO_CHANGE:
            self._state.on_observer_output(output)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        output = self.inspector.close(asyncio.get_running_loop().time())
        self._state.on_closed(self._number, output)


class BrokerSide(ProxyConnection):
    """The connection of the proxy to the broker, on behalf of one client."""

    def __init__(self, state: ProxyState, client: ProxyConnection, header: bytes) -> None:
        """`header` is what the broker gets before the client's bytes."""
        super().__init__(state)
        self._client = client
        self._header = header

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._client.transport.is_closing():  # it did not wait
            self.transport.abort()
            return
        self.peer = self._client
        if self._header:
            self.write(self._header)
        self._client.on_broker_connected(self)

    def receive(self, data: bytes) -> None:
        self._client.receive_from_broker(data)
