"""TLS below a stream link, on memory buffers: any transport of bytes can carry it.

To its transport it is a protocol, to the link it is the transport:

    StreamLink  ⇄ frames ⇄  TlsStream  ⇄ records ⇄  SocketTransport or MqttStream

The link opens when the handshake is complete and the peer's certificate is accepted. Until then the
peer gets `HANDSHAKE_BYTES` bytes, and the time and place that `admission` gives every connection.
The side that dialled is the TLS server (`hansa.identity.tls`).
"""

import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, cast

from hansa.agent.links.admission import HELLO_BYTES, TOO_MANY_BYTES, Admission
from hansa.agent.links.security import LinkSecurity
from hansa.agent.links.stream import StreamLink
from hansa.agent.sockets import ByteProtocol, ByteTransport
from hansa.errors import InvalidCertificate
from hansa.identity.tls import check_tls_peer, explain_handshake_error

HANDSHAKE_BYTES = HELLO_BYTES
"""Bytes that may arrive before the peer is authenticated. A handshake needs about 1,200 bytes, and
2,000 more for long claims and a chain of two."""

CLOSED_DURING_HANDSHAKE = "closed by the other side before TLS was agreed; its log may say why"


def secure_protocol(link: StreamLink, admission: Admission) -> ByteProtocol:
    """Return what a transport carries for a link: TLS, or the link itself without security."""
    security = admission.security
    if security is None:
        return link
    if link.dialled_address is not None:
        # The dialler logs it.
        return TlsStream(link, security, partial(admission.on_dialled_refused, link.remote))
    return TlsStream(link, security, partial(admission.refuse_unauthenticated, link.remote))


class _Records(Protocol):
    """What encrypts and decrypts records."""

    def read(self, size: int, buffer: memoryview, /) -> int: ...

    def write(self, data: bytes | bytearray | memoryview, /) -> int: ...

    def pending(self) -> int: ...


class TlsStream:
    """One TLS connection."""

    __deletable__ = (
        "_connection",
        "_records",
        "_incoming",
        "_outgoing",
    )  # only the compiler reads this

    def __init__(
        self, link: StreamLink, security: LinkSecurity, on_refused: Callable[[str], None]
    ) -> None:
        """`on_refused` gets the reason if the peer is not authenticated."""
        self._link = link
        self._security = security
        self._contexts = security.contexts
        self._on_refused = on_refused
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        is_dialled = link.dialled_address is not None
        context = self._contexts.dialling if is_dialled else self._contexts.accepting
        self._connection = context.wrap_bio(self._incoming, self._outgoing, server_side=is_dialled)
        # Each method of SSLObject only adds a call of Python around one of this object.
        self._records = cast(_Records, getattr(self._connection, "_sslobj", self._connection))
        self._is_authenticated = False
        self._handshake_bytes = 0
        self._problem = ""
        self._transport: ByteTransport | None = None

    # ------------------------------------------------------------ called by the transport below

    def connection_made(self, transport: ByteTransport) -> None:
        self._transport = transport
        self._link.await_authentication(self)
        self._continue_handshake()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._security.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._problem:
            return  # being closed: ignore the rest
        self._incoming.write(self._security.buffer[:nbytes])
        if not self._is_authenticated:
            self._handshake_bytes += nbytes
            self._continue_handshake()
            if not self._is_authenticated:
                if self._handshake_bytes > HANDSHAKE_BYTES and not self._problem:
                    self._refuse(TOO_MANY_BYTES)
                return
        self._read_available()

    def pause_writing(self) -> None:
        self._link.pause_writing()

    def resume_writing(self) -> None:
        if self._is_authenticated:
            self._link.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_authenticated and not self._problem:
            reason = self._link.close_reason or CLOSED_DURING_HANDSHAKE
            self._problem = f"{reason}: {exc}" if exc else reason
            self._on_refused(self._problem)
        self._link.connection_lost(ConnectionError(self._problem) if self._problem else exc)
        # Link, transport and TLS refer to each other, and garbage collections are rare: a flood of
        # refused connections would keep hundreds of megabytes.
        del self._connection, self._records, self._incoming, self._outgoing

    def _continue_handshake(self) -> None:
        try:
            self._connection.do_handshake()
            certificate = check_tls_peer(self._connection, self._contexts.credentials)
            self._link.authenticate(certificate)
            self._security.check_quarantine(certificate.node)
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._refuse(explain_handshake_error(error))
        except InvalidCertificate as error:
            self._outgoing.read()  # our certificate is not for this peer
            self._refuse(f"the peer's certificate is refused: {error}")
        else:
            self._flush()
            self._is_authenticated = True
            self._link.connection_made(self)

    def _refuse(self, reason: str) -> None:
        self._problem = reason
        self._on_refused(reason)
        self._flush()  # an alert tells the peer
        self._lower.close()

    def _read_available(self) -> None:
        """Give the link all bytes that have arrived, in as few pieces as fit its buffer.

        `read` returns one record at most, and raises when there is none: an exception costs more
        than to ask for what is pending."""
        connection, incoming = self._records, self._incoming
        while not self._problem:
            buffer = self._link.get_buffer(-1)
            size, filled = len(buffer), 0
            try:
                filled = connection.read(size, buffer)
                while filled < size and (incoming.pending or connection.pending()):
                    filled += connection.read(size - filled, buffer[filled:])
            except ssl.SSLWantReadError:
                self._hand_over(filled)
                return
            except ssl.SSLZeroReturnError:
                self._hand_over(filled)
                self.close()
                return
            except ssl.SSLError as error:
                self._problem = explain_handshake_error(error)
                self._flush()
                self._lower.close()
                return
            self._hand_over(filled)
            if filled < size:
                return

    def _hand_over(self, filled: int) -> None:
        if filled:
            self._link.buffer_updated(filled)

    # ------------------------------------------------------------ called by the link

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt and send."""
        if self._lower.is_closing():
            return
        written = self._records.write(data)
        while written < len(data):  # a record has 16 KiB
            written += self._records.write(memoryview(data)[written:])
        self._lower.write(self._outgoing.read())

    def get_extra_info(self, name: str) -> Any:
        return self._lower.get_extra_info(name)

    def get_write_buffer_size(self) -> int:
        """Return the number of waiting bytes."""
        return self._lower.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`; bytes that were read already are still handled."""
        self._lower.pause_reading()

    def resume_reading(self) -> None:
        self._lower.resume_reading()

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        return self._lower.is_closing()

    def close(self) -> None:
        """Tell the peer, and close when waiting bytes are sent."""
        if self._lower.is_closing():
            return
        if self._is_authenticated:
            try:
                self._connection.unwrap()
            except ssl.SSLError:
                pass  # SSLWantReadError: the peer's answer is not awaited
            self._flush()
        self._lower.close()

    def abort(self) -> None:
        """Close now; waiting bytes are lost."""
        self._lower.abort()

    @property
    def _lower(self) -> ByteTransport:
        assert self._transport is not None
        return self._transport

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._lower.write(self._outgoing.read())
