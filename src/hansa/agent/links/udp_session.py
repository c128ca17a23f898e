"""The secure session of a UDP link: performs the handshake of `sealed_datagrams`, with its retries,
then seals and opens the link's datagrams."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hansa.agent.links.datagrams import CLOSE, HANDSHAKE, HEADER_BYTES
from hansa.agent.links.sealed_datagrams import DatagramHandshake, LinkKeys
from hansa.agent.links.security import LinkSecurity
from hansa.errors import InvalidCertificate
from hansa.identity.certificates import NodeCertificate

HANDSHAKE_RETRY_S = 0.1
"""Seconds until unanswered datagrams of a handshake are sent again."""


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """What a session calls."""

    send: Callable[[bytes], object]
    """Sends a datagram."""
    on_authenticated: Callable[[NodeCertificate], None]
    on_failed: Callable[[str], None]
    """Gets the reason if the handshake cannot be completed."""
    on_refused_datagram: Callable[[], None]


class SecureSession:
    """One handshake, and the keys that follow from it."""

    def __init__(
        self, security: LinkSecurity, id_: bytes, is_dialled: bool, owner: SessionOwner
    ) -> None:
        self._security = security
        self._id = id_
        self._owner = owner
        self._handshake = DatagramHandshake(security.contexts, is_dialled)
        self._keys: LinkKeys | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def start(self) -> None:
        self._send(self._handshake.unsent())
        self._schedule()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def seal(self, header: bytes, body: bytes) -> bytes:
        """Return the rest of a datagram after its header; in clear before keys are agreed."""
        return body if self._keys is None else self._keys.sealer.seal(header, body)

    def open(self, datagrams: Sequence[bytes]) -> list[bytes]:
        """Return the authentic datagrams in clear; continue the handshake with its own."""
        opened: list[bytes] = []
        for datagram in datagrams:
            header, body = datagram[:HEADER_BYTES], datagram[HEADER_BYTES:]
            if header[:1] == HANDSHAKE:
                self._continue(body)
            elif self._keys is None:
                if header[:1] == CLOSE:
                    self._owner.on_failed("closed by the other side before keys were agreed")
            elif (data := self._keys.opener.open(header, body)) is not None:
                opened.append(header + data)
            else:
                self._owner.on_refused_datagram()
        return opened

    def _continue(self, body: bytes) -> None:
        handshake = self._handshake
        try:
            answers = handshake.receive(body)
            if (certificate := handshake.certificate) is not None and self._keys is None:
                self._security.check_quarantine(certificate.node)
        except InvalidCertificate as error:
            self._send(handshake.unsent())  # an alert
            self._owner.on_failed(str(error))
            return
        self._send(answers)
        if certificate is not None and handshake.keys is not None and self._keys is None:
            self._keys = handshake.keys
            self._owner.on_authenticated(certificate)

    def _on_timer(self) -> None:
        """Send again what the peer has not acknowledged."""
        self._send(self._handshake.unacknowledged())
        if self._keys is None or not self._handshake.is_acknowledged:
            self._schedule()

    def _schedule(self) -> None:
        if self._is_stopped:
            return
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_RETRY_S, self._on_timer)

    def _send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._owner.send(HANDSHAKE + self._id + body)
