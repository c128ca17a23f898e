"""Target `issuers`: connections to `hansa invite` and `hansa ca serve`, over real sockets.

Bytes before TLS, and messages after it: damaged, or with a genuine proof around a damaged request.
"""

import hmac
import random
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import msgspec
from tests.fuzz.targets import Corpus
from tests.identity.certified import certify, make_authority, now

from hansa.identity.authority import CertificateAuthority, make_request
from hansa.identity.certificates import Claims
from hansa.identity.credentials import load_credentials
from hansa.identity.enrolment import (
    DOMAIN,
    EnrolmentRequest,
    Invitation,
    InvitationTerms,
    parse_token,
    redeem,
)
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.renewal import Issuer, RenewalRequest
from hansa.identity.tls import make_contexts

TIMEOUT_S = 30.0


class IssuerTarget:
    """An open invitation and an issuer of renewals, each served in a thread."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._state = Path(self._directory.name)
        authority = make_authority(self._state / "ca")
        certify(authority, self._state / "node")
        key = load_key(self._state / "node" / KEY_FILE)
        assert key is not None
        self._request = make_request(key)
        self._corpus = Corpus(self._request)
        self._faults: list[BaseException] = []
        self._previous_hook = threading.excepthook
        threading.excepthook = lambda fault: self._faults.append(fault.exc_value or SystemExit())
        credentials = load_credentials(self._state / "node", self._state / "node" / KEY_FILE, now())
        self._dialling = make_contexts(credentials).dialling
        self._stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._stranger.check_hostname, self._stranger.verify_mode = False, ssl.CERT_NONE
        self._issuer = Issuer(self._state / "ca", "127.0.0.1", 0, interval_s=0.0)
        self._issuing = threading.Thread(target=self._issuer.serve)
        self._issuing.start()
        self._invite()

    def _invite(self) -> None:
        terms = InvitationTerms(Claims(), timedelta(days=1), open_s=3_600.0)
        authority = CertificateAuthority(self._state / "ca")
        self._invitation = Invitation(authority, terms, "127.0.0.1", 0)
        self._secret = parse_token(self._invitation.token("127.0.0.1", 1)).secret
        self._inviting = threading.Thread(target=self._invitation.serve)
        self._inviting.start()

    def run(self, rng: random.Random) -> None:
        rng.choice((self._stranger_bytes, self._ask_to_join, self._ask_to_renew))(rng)
        if self._faults:
            raise self._faults[0]
        assert self._issuing.is_alive(), "the issuer has ended"

    def _stranger_bytes(self, rng: random.Random) -> None:
        port = rng.choice((self._issuer.port, self._invitation.port))
        made = self._corpus.draw(rng, rng.randbytes(rng.randrange(200)))
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as raw:
            with suppress(OSError):
                raw.sendall(made)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(4_096):
                    pass

    def _ask_to_join(self, rng: random.Random) -> None:
        request = self._request if rng.random() < 0.1 else self._corpus.draw(rng, self._request)
        proof = hmac.digest(self._secret, DOMAIN + request, "sha256")
        reply = self._ask(
            self._invitation.port,
            self._stranger.wrap_socket,
            self._message(rng, EnrolmentRequest(request, proof)),
        )
        if b"CERTIFICATE" in reply:  # the invitation is used up
            self._inviting.join()
            self._invitation.close()
            self._invite()

    def _ask_to_renew(self, rng: random.Random) -> None:
        request = self._corpus.draw(rng, self._request)
        self._ask(
            self._issuer.port,
            lambda raw: self._dialling.wrap_socket(raw, server_side=True),
            self._message(rng, RenewalRequest(request)),
        )

    def _message(self, rng: random.Random, message: msgspec.Struct) -> bytes:
        data = msgspec.msgpack.encode(message)
        if rng.random() < 0.3:
            data = self._corpus.draw(rng, data)
        length = len(data) if rng.random() < 0.9 else rng.choice((0, 1, 4_096, 4_097, 1 << 31))
        return length.to_bytes(4, "big") + data

    def _ask(
        self, port: int, secure: Callable[[socket.socket], ssl.SSLSocket], message: bytes
    ) -> bytes:
        """Return the reply; if the message is shorter than it says, the issuer waits for more until
        this side closes."""
        raw = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        reply = b""
        with raw, suppress(OSError), secure(raw) as connection:
            connection.sendall(message)
            if int.from_bytes(message[:4], "big") > len(message) - 4:
                return b""
            while data := connection.recv(4_096):
                reply += data
        return reply

    def close(self) -> None:
        token = parse_token(self._invitation.token("127.0.0.1", self._invitation.port))
        redeem(token, self._request)  # ends it
        self._inviting.join()
        self._issuer.stop()
        self._issuing.join()
        threading.excepthook = self._previous_hook
        self._issuer.close()
        self._invitation.close()
        self._directory.cleanup()
