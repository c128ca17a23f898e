"""One client connection to a broker: sockets, reconnection and back-off around a pure
`ClientConnection`.

It tries MQTT 5 first and 3.1.1 if the broker does not support it. The owner gets every effect
that it has to act on.
"""

import asyncio
import random
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol, cast

import msgspec

from hansa.agent import sockets
from hansa.agent.deadline_timer import DeadlineTimer
from hansa.agent.error_text import explain_socket_error, quote_text
from hansa.agent.sockets import ByteTransport, SocketTransport
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.connection import ClientConnection
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.types import Reason, Version

RETRY_MIN_S = 0.1
RETRY_MAX_S = 10.0
CONNECT_TIMEOUT_S = 5.0
DISCONNECT_TIMEOUT_S = 1.0

CLOSE_GRACE_S = 1.0
"""Seconds that the last bytes have to leave when a connection is closed."""

STABLE_AFTER_S = 1.0
"""Seconds after which a connection counts as a success. A broker that accepts the agent and
disconnects at once is retried as slowly as one that refuses."""

READ_BYTES = 1 << 18

QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Linux only; None elsewhere."""

CLOSED_BY_BROKER = "closed by the broker"

SILENT_REFUSALS_MAX = 8
"""Connections in a row that the broker closes without CONNACK before the agent tries MQTT 3.1.1:
the broker may be stopping, or starting behind a load balancer. With the back-off that takes about
10 s; one connection that stays open without CONNACK for so long, as with amqtt, is enough. A broker
that has accepted MQTT 5 before is not doubted unless it refuses the version explicitly."""

SILENT_REFUSALS_AGAIN_MAX = 2
"""The same if the last connection to the broker was one of MQTT 3.1.1."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Address of a broker, with credentials and TLS."""

    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    credentials_source: str = "the user name and the password"
    """Name of the setting that holds the credentials, for the message when the broker refuses them.
    """

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


LOGIN_REFUSED = "login refused by the broker"
"""Prefix of the reason when the broker refuses user name or password."""

_LOGIN_REFUSED_CODES = {4, 5, Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED}
"""CONNACK codes about user name and password: two of MQTT 3.1.1, two of MQTT 5. Mosquitto answers
`not authorized` to a wrong password."""


class ConnectHooks(Protocol):
    """Called around CONNECT, before the broker can know of this connection."""

    async def before_connect(self) -> None:
        """Called before CONNECT is sent; CONNECT waits until this returns."""

    def on_connect_refused(self) -> None:
        """CONNECT was refused or not sent."""


class Connection(asyncio.BufferedProtocol):
    """Keeps one client connected while `run` runs; hands effects to its owner."""

    def __init__(
        self,
        address: BrokerAddress,
        options: ConnectOptions,
        on_effect: Callable[[effects.Effect], None],
        rng: random.Random,
        is_low_latency: bool = False,
    ) -> None:
        """With `is_low_latency` it sends and acknowledges small packets at once. Otherwise
        Mosquitto's next packet waits up to 40 ms for the kernel's acknowledgement of the previous
        one (Nagle's algorithm there, delayed acknowledgements here)."""
        self._quick_ack = QUICK_ACK if is_low_latency else None
        self._address = address
        self._preferred_options = replace(
            options,
            username=address.username,
            password=address.password.encode() if address.password is not None else None,
        )
        self._options = self._preferred_options
        self._silent_refusals = 0
        self._accepted_version: Version | None = None  # by the broker, most recently
        self._retry_delay = RETRY_MIN_S
        self._on_effect = on_effect
        self._rng = rng
        self._client_connection: ClientConnection | None = None
        self._transport: ByteTransport | None = None
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._closed = asyncio.Event()
        self._timer = DeadlineTimer(self._handle_timer)
        self._run_task: asyncio.Task[None] | None = None
        self.connect_hooks: ConnectHooks | None = None
        self.problem = "not connected yet"
        """Why there is no connection; empty while there is one."""

    async def run(self) -> None:
        """Keep the client connected until cancelled."""
        while True:
            if await self._connect():
                began = asyncio.get_running_loop().time()
                await self._closed.wait()
                if asyncio.get_running_loop().time() - began >= STABLE_AFTER_S:
                    self._retry_delay = RETRY_MIN_S
            await asyncio.sleep(self._retry_delay * self._rng.uniform(0.5, 1.0))
            self._retry_delay = min(2 * self._retry_delay, RETRY_MAX_S)

    def mark_version_known(self, version: Version) -> None:
        """The broker keeps a session of this client with this version."""
        self._accepted_version = version

    def set_will(self, will: packets.Will) -> None:
        """Use another will from the next connection on."""
        self._preferred_options = replace(self._preferred_options, will=will)
        self._options = replace(self._options, will=will)

    def submit(self, event: inputs.Input) -> None:
        """Pass a request to the `ClientConnection`; without one it is ignored. An invalid request
        is a bug of ours. It ends the connection, because delivery counts it as sent until the next
        one."""
        if self._client_connection is not None:
            try:
                self._handle(event)
            except Exception:
                self.abort()
                raise

    @property
    def client_connection(self) -> ClientConnection | None:
        """The MQTT state machine of the current connection."""
        return self._client_connection

    @property
    def version(self) -> Version:
        """The MQTT version that is used, or tried next."""
        return self._options.version

    @property
    def packet_bytes_max(self) -> int:
        """Bytes of the largest packet that this client accepts."""
        return self._preferred_options.packet_bytes_max

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were written and not sent yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def start(self) -> None:
        """Run in a task of its own until `stop`."""
        self._run_task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        """Disconnect and do not reconnect."""
        await self.disconnect()
        if self._run_task is not None:
            self._run_task.cancel()
            await asyncio.gather(self._run_task, return_exceptions=True)

    async def disconnect(self) -> None:
        """Send DISCONNECT, so that the broker does not publish the will."""
        if self._client_connection is not None and not self.problem:
            self._handle(inputs.Disconnect())
            # Not wait_for: in Python 3.11 it can swallow a cancellation of the caller.
            with suppress(TimeoutError):
                async with asyncio.timeout(DISCONNECT_TIMEOUT_S):
                    await self._closed.wait()

    def abort(self) -> None:
        """Close the socket at once, if there is one."""
        if self._transport is not None:
            self._transport.abort()

    async def _connect(self) -> bool:
        loop = asyncio.get_running_loop()
        self._closed.clear()
        host, port, tls = self._address.host, self._address.port, self._address.tls
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):  # wait_for of 3.11 can miss this
                if tls is None:
                    SocketTransport(await sockets.connect(host, port), self)
                else:
                    await loop.create_connection(lambda: self, host, port, ssl=tls)
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            self._perform(
                effects.ConnectRefused(None, explain_socket_error(error), version_refused=False)
            )
            return False
        if self.connect_hooks is not None:
            await self.connect_hooks.before_connect()
            if self._transport is None:
                self.connect_hooks.on_connect_refused()
        if self._transport is None:  # already lost
            return False
        self._client_connection = ClientConnection(self._options)
        self._handle(inputs.Opened())
        return True

    # ------------------------------------------------------------ called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(ByteTransport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass received bytes to the `ClientConnection`."""
        if self._quick_ack is not None and self._transport is not None:
            # The kernel resets the option with the next write.
            self._transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, self._quick_ack, 1
            )
        self._handle(inputs.Received(self._buffer[:nbytes]))

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session, if it has begun."""
        text = explain_socket_error(exc) if exc else CLOSED_BY_BROKER
        try:
            if self._client_connection is None:
                self._perform(effects.ConnectRefused(None, text, version_refused=False))
            self._handle(inputs.Closed(text))
        finally:  # the connection is over even if the owner raises
            self._transport = None
            self._client_connection = None
            self._timer.cancel()
            self._closed.set()

    def _handle(self, event: inputs.Input) -> None:
        if self._client_connection is None:
            return
        for effect in self._client_connection.handle(event, monotonic()):
            if type(effect) is effects.PublishReceived:  # the most frequent by far
                self._on_effect(effect)
            else:
                self._perform(effect)
        self._update_timer()

    def _update_timer(self) -> None:
        due = (
            self._client_connection.next_deadline() if self._client_connection is not None else None
        )
        if due is not None:
            self._timer.schedule(due)

    def _handle_timer(self) -> None:
        self._handle(inputs.TimerFired())

    def _perform(self, effect: effects.Effect) -> None:
        if (
            type(effect) is effects.ConnectRefused
            and effect.reason is not None
            and self.connect_hooks
        ):
            self.connect_hooks.on_connect_refused()
        match effect:
            case effects.Write(data):
                if self._transport is not None:
                    self._transport.write(data)
            case effects.Close():
                self._close()
            case effects.Connected(broker_limits=limits):
                self.problem = ""
                self._silent_refusals = 0
                self._accepted_version = limits.version
                self._on_effect(effect)
            case effects.ConnectRefused(version_refused=True) if self._try_older_version(effect):
                pass
            case effects.ConnectRefused() | effects.Disconnected() | effects.ProtocolViolation():
                if (
                    isinstance(effect, effects.ConnectRefused)
                    and effect.reason in _LOGIN_REFUSED_CODES
                ):
                    effect = msgspec.structs.replace(
                        effect, text=self._login_refused_text(effect.text)
                    )
                # Logged once: a broker that is down for a day must not fill the log.
                is_changed, self.problem = effect.text != self.problem, effect.text
                self._options = self._preferred_options
                if is_changed:
                    self._on_effect(effect)
            case _:
                self._on_effect(effect)

    def _login_refused_text(self, code: str) -> str:
        name = self._address.username
        tried = f"with the user name {quote_text(name)}" if name else "without a user name"
        return f"{LOGIN_REFUSED} ({code}), tried {tried}: check {self._address.credentials_source}"

    def _close(self) -> None:
        """Close when all bytes are sent, or after CLOSE_GRACE_S if the broker does not read."""
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._transport.abort)

    def _try_older_version(self, refusal: effects.ConnectRefused) -> bool:
        """Choose an older version for the next attempt, if there is one; return whether that
        explains the refusal.

        After a lost connection the agent starts with the newest version again: the broker may have
        been replaced. A session of MQTT 3.1.1 ends the session that a broker keeps for the same
        client in MQTT 5, with everything queued there.
        """
        if refusal.reason is None:
            self._silent_refusals += 1
            enough = SILENT_REFUSALS_MAX
            if refusal.timed_out:
                enough = 1
            elif self._accepted_version is Version.V311:
                enough = SILENT_REFUSALS_AGAIN_MAX
            if self._accepted_version is Version.V5 or self._silent_refusals < enough:
                return False
        if self._options.version is Version.V5:
            # A session of MQTT 5 is not resumed: queued copies could not be distinguished.
            is_kept = self._options.keeps_3_1_1_session and self._accepted_version is not Version.V5
            self._options = replace(self._options, version=Version.V311, clean_start=not is_kept)
            return True
        self._silent_refusals = 0
        return False


ConnectionFactory = Callable[[Callable[[effects.Effect], None]], Connection]
"""Makes a connection whose effects go to the given callback."""

NamedConnectionFactory = Callable[[str, Callable[[effects.Effect], None]], Connection]
"""The same with a name, which becomes part of the client id."""
