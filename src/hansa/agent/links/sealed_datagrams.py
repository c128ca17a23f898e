"""Authenticated encryption of one UDP link.

Guarantees from the moment at which `DatagramHandshake.keys` is set:

- The peer is a member: TLS 1.3 with certificates on both sides, the same checks as on other links.
- A datagram that `DatagramOpener.open` returns was sealed by this peer, for this link and this
  direction, and is returned once: a replay, an altered and an invented datagram are refused.
- No other party can read it. Both keys are random, are held in memory only, and are replaced by a
  one-way function after `REKEY_DATAGRAMS` datagrams.

It guarantees neither delivery nor order, and does not hide sizes and times. Nothing of the link is
accepted in clear after the handshake, not even its end.

Python's `ssl` has neither DTLS nor key exporters. So the TLS handshake is carried as a stream of
bytes in numbered datagrams, and each side sends the random key of its direction through the TLS
connection. As on stream links, the side that dialled is the TLS server (`hansa.identity.tls`).

    HANDSHAKE  offset of the bytes (2), bytes received so far (2), bytes
    sealed     number (8), ciphertext, tag (16)

Pure but for random keys: no sockets, no time.
"""

import hashlib
import secrets
import ssl
import struct
from dataclasses import dataclass

from hansa.agent.links.admission import HELLO_BYTES, TOO_MANY_BYTES
from hansa.agent.links.datagrams import DATAGRAM_BYTES_MAX, HEADER_BYTES, SEAL_BYTES
from hansa.errors import InvalidCertificate
from hansa.identity.certificates import NodeCertificate
from hansa.identity.key_exchange import ChaChaCipher
from hansa.identity.tls import LinkContexts, check_tls_peer, explain_handshake_error
from hansa.protocol.pair_authentication import ReplayWindow

REKEY_DATAGRAMS = 1 << 20
"""Datagrams of one direction between two keys. The receiver follows if fewer than that are lost in
a row; otherwise it can open none, and the link is dialled again."""

HANDSHAKE_BYTES_MAX = HELLO_BYTES
"""Bytes that the peer may send before it is authenticated, as on stream links."""

KEY_BYTES = 32
NUMBER_BYTES = 8
TAG_BYTES = SEAL_BYTES - NUMBER_BYTES
_HANDSHAKE_HEADER = struct.Struct(">HH")
_CHUNK_BYTES = DATAGRAM_BYTES_MAX - HEADER_BYTES - _HANDSHAKE_HEADER.size
_NONCE_PREFIX = bytes(4)
_REKEY_PERSON = b"hansa udp rekey"


def _next_key(key: bytes) -> bytes:
    return hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=_REKEY_PERSON).digest()


class DatagramSealer:
    """Seals the datagrams of one direction."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._cipher = ChaChaCipher(key)
        self._number = 1

    def seal(self, header: bytes, data: bytes) -> bytes:
        """Return the body of a datagram; the header is protected, but not part of it."""
        number = self._number
        self._number += 1
        if number % REKEY_DATAGRAMS == 0:
            self._key = _next_key(self._key)
            self._cipher = ChaChaCipher(self._key)
        numbered = number.to_bytes(NUMBER_BYTES, "big")
        return numbered + self._cipher.seal(_NONCE_PREFIX + numbered, data, header)


class DatagramOpener:
    """Opens the datagrams of one direction, each once."""

    def __init__(self, key: bytes) -> None:
        self._generation = 0
        self._next_key = _next_key(key)
        self._ciphers = {0: ChaChaCipher(key), 1: ChaChaCipher(self._next_key)}
        """Of the present key, the previous and the next one."""
        self._window = ReplayWindow()

    def open(self, header: bytes, body: bytes) -> bytes | None:
        """Return the data of a datagram, None unless the peer sealed it and it is new."""
        number = int.from_bytes(body[:NUMBER_BYTES], "big")
        generation = number // REKEY_DATAGRAMS
        cipher = self._ciphers.get(generation)
        if cipher is None or len(body) < SEAL_BYTES or not self._window.is_new(number):
            return None
        data = cipher.open(_NONCE_PREFIX + body[:NUMBER_BYTES], body[NUMBER_BYTES:], header)
        if data is None:
            return None
        if generation > self._generation:
            self._advance()
        self._window.add(number)
        return data

    def _advance(self) -> None:
        self._ciphers.pop(self._generation - 1, None)
        self._generation += 1
        self._next_key = _next_key(self._next_key)
        self._ciphers[self._generation + 1] = ChaChaCipher(self._next_key)


@dataclass(frozen=True, slots=True)
class LinkKeys:
    """The result of a handshake."""

    sealer: DatagramSealer
    opener: DatagramOpener


class DatagramHandshake:
    """The TLS handshake of one link and the exchange of its keys."""

    def __init__(self, contexts: LinkContexts, is_dialled: bool) -> None:
        self._credentials = contexts.credentials
        context = contexts.dialling if is_dialled else contexts.accepting
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_dialled)
        self._own_key = secrets.token_bytes(KEY_BYTES)
        self._peer_key = b""
        self._output = bytearray()
        self._sent_bytes = 0
        self._acknowledged_bytes = 0
        self._received_bytes = 0
        self.certificate: NodeCertificate | None = None
        """Of the peer, once TLS has accepted it."""
        self.keys: LinkKeys | None = None
        self._advance()

    @property
    def is_acknowledged(self) -> bool:
        """Whether the peer has everything that was sent."""
        return self._acknowledged_bytes == len(self._output)

    def receive(self, body: bytes) -> list[bytes]:
        """Take a HANDSHAKE datagram and return the bodies of the answers; raise
        InvalidCertificate with the reason if the peer cannot be accepted."""
        if len(body) < _HANDSHAKE_HEADER.size:
            return []
        offset, acknowledged = _HANDSHAKE_HEADER.unpack_from(body)
        if self._acknowledged_bytes < acknowledged <= len(self._output):
            self._acknowledged_bytes = acknowledged
            self._sent_bytes = max(self._sent_bytes, acknowledged)
        data = body[_HANDSHAKE_HEADER.size :]
        if not data:
            return []  # an acknowledgement is not acknowledged
        fresh = data[self._received_bytes - offset :] if offset <= self._received_bytes else b""
        if fresh and self.keys is None:
            self._received_bytes += len(fresh)
            if self._received_bytes > HANDSHAKE_BYTES_MAX:
                raise InvalidCertificate(TOO_MANY_BYTES)
            self._incoming.write(fresh)
            self._advance()
        return self.unsent() or [_HANDSHAKE_HEADER.pack(self._sent_bytes, self._received_bytes)]

    def unsent(self) -> list[bytes]:
        """Return the bodies of datagrams with bytes that were not sent yet."""
        output, begin = self._output, self._sent_bytes
        self._sent_bytes = len(output)
        return [
            _HANDSHAKE_HEADER.pack(at, self._received_bytes) + output[at : at + _CHUNK_BYTES]
            for at in range(begin, len(output), _CHUNK_BYTES)
        ]

    def unacknowledged(self) -> list[bytes]:
        """Return the bodies of datagrams to send again."""
        self._sent_bytes = self._acknowledged_bytes
        return self.unsent()

    def _advance(self) -> None:
        """Continue with what has arrived."""
        try:
            if self.certificate is None:
                self._tls.do_handshake()
                self.certificate = check_tls_peer(self._tls, self._credentials)
                self._tls.write(self._own_key)
            self._peer_key += self._tls.read(KEY_BYTES - len(self._peer_key))
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._flush()  # an alert tells the peer
            raise InvalidCertificate(explain_handshake_error(error)) from error
        except InvalidCertificate as error:
            self._outgoing.read()  # our certificate is not for this peer
            raise InvalidCertificate(f"the peer's certificate is refused: {error}") from error
        self._flush()
        if len(self._peer_key) == KEY_BYTES:
            self.keys = LinkKeys(DatagramSealer(self._own_key), DatagramOpener(self._peer_key))

    def _flush(self) -> None:
        self._output += self._outgoing.read()
