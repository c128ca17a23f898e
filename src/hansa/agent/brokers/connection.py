"""One client of the broker, kept connected: sockets and back-off around a pure MQTT session.

What the client does with the connection is its owner's business; MQTT 5 is tried first and 3.1.1
when the broker does not know it.
"""

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hansa.mqtt import effects, inputs
from hansa.mqtt.options import Options
from hansa.mqtt.session import Session
from hansa.mqtt.vocabulary import Version

RETRY_MIN_S = 0.1
RETRY_MAX_S = 10.0
CONNECT_TIMEOUT_S = 5.0
READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where the broker is and how to be let in."""

    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        """Return it as people write it."""
        return f"{self.host}:{self.port}"


class Connection(asyncio.BufferedProtocol):
    """Reconnects for as long as `run` runs; hands every effect that is news to its owner."""

    def __init__(
        self,
        address: BrokerAddress,
        options: Options,
        told: Callable[[effects.Effect], None],
        chance: random.Random,
    ) -> None:
        """Prepare; nothing happens before `run`."""
        self._address = address
        self._options = replace(
            options,
            username=address.username,
            password=address.password.encode() if address.password is not None else None,
        )
        self._told = told
        self._chance = chance
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(READ_BYTES)
        self._ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.problem = "not connected yet"
        """Why there is no connection; empty while there is one."""

    async def run(self) -> None:
        """Keep the client connected."""
        pause = RETRY_MIN_S
        while True:
            if await self._connect():
                await self._ended.wait()
                if not self.problem:
                    pause = RETRY_MIN_S
            await asyncio.sleep(pause * self._chance.uniform(0.5, 1.0))
            pause = min(2 * pause, RETRY_MAX_S)

    def order(self, event: inputs.Input) -> None:
        """Hand an order to the session; without a connection there is nothing to order."""
        if self._session is not None:
            self._handle(event)

    @property
    def session(self) -> Session | None:
        """The session of the present connection."""
        return self._session

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the broker has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    async def leave(self, session_expiry: int | None = None) -> None:
        """Say goodbye to the broker."""
        if self._session is not None and not self.problem:
            self._handle(inputs.Disconnect(session_expiry=session_expiry))
            await asyncio.wait_for(self._ended.wait(), 1.0)

    async def _connect(self) -> bool:
        loop = asyncio.get_running_loop()
        self._session = Session(self._options)
        self._ended.clear()
        connect = loop.create_connection(
            lambda: self,
            self._address.host,
            self._address.port,
            ssl=self._address.tls,
        )
        try:
            await asyncio.wait_for(connect, CONNECT_TIMEOUT_S)
        except (OSError, TimeoutError) as error:
            self._session = None
            self._fail(str(error) or "no answer")
            return False
        return True

    def _fail(self, text: str) -> None:
        """Note why there is no connection; tell it when it is news."""
        if text != self.problem:
            self.problem = text
            self._told(effects.ConnectRefused(None, text, version_refused=False))

    # ------------------------------------------------------------ called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the session."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._handle(inputs.Opened())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        """Hand what arrived to the session."""
        self._handle(inputs.Received(memoryview(self._buffer)[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session."""
        self._handle(inputs.Closed(str(exc) if exc else "closed by the broker"))
        self._transport = None
        self._session = None
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set()

    def _handle(self, event: inputs.Input) -> None:
        if self._session is None:
            return
        loop = asyncio.get_running_loop()
        for effect in self._session.handle(event, loop.time()):
            self._perform(effect)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._session.next_deadline()
        if due is not None:
            self._timer = loop.call_at(due, self._handle, inputs.TimerFired())

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Write(data):
                if self._transport is not None:
                    self._transport.write(data)
            case effects.Close():
                if self._transport is not None:
                    self._transport.close()
            case effects.Connected():
                self.problem = ""
                self._told(effect)
            case effects.ConnectRefused(version_refused=True) if self._fall_back():
                pass
            case effects.ConnectRefused(text=text) | effects.Disconnected(text=text):
                self.problem = text
                self._told(effect)
            case _:
                self._told(effect)

    def _fall_back(self) -> bool:
        """Try an older version next time, if there is one."""
        if self._options.version is Version.V5:
            self._options = replace(self._options, version=Version.V311, bridge=True)
            return True
        if self._options.bridge:
            self._options = replace(self._options, bridge=False)
            return True
        return False
