"""Enrolment over the network: an invitation on one side, a token on the other.

    issuer                              joining node
    invite: prints a token     ──▶      join TOKEN (given by the operator)
                               ◀──      TLS to the issuer, whose certificate the token pins
                               ◀──      request, HMAC of it with the secret of the token
    certificate, roots, revocation list ──▶

The token is a secret until it is used: the first node that shows it joins, once, with the claims
that the issuer chose. Its private key never leaves its machine. The issuer runs only while an
invitation is open, so the authority's key is not in reach of the agents' ports.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from hansa.errors import InvalidCertificate, UsageError
from hansa.identity.authority import Bundle, CertificateAuthority, make_request
from hansa.identity.certificates import Claims, NodeCertificate
from hansa.identity.credentials import Credentials, install, parse_bundle, save_issuer
from hansa.identity.exchange import (
    EXCHANGE_TIMEOUT_S,
    MESSAGE_BYTES_MAX,
    REQUEST_BYTES_MAX,
    Exchange,
    ExchangeServer,
    IssuerReply,
    receive_message,
    send_message,
)
from hansa.identity.keys import KEY_FILE, create_key, load_key
from hansa.identity.tls import make_pinned_context

SECRET_BYTES = 16
DOMAIN = b"hansa enrolment 1"

REPORTS_MAX = 20
"""Refused connections that an invitation reports; further ones are refused silently."""


class Token(msgspec.Struct, frozen=True, array_like=True):
    """What the operator carries from the issuer to the new node."""

    host: str
    port: int
    fingerprint: bytes
    """SHA-256 of the issuer's certificate."""
    secret: bytes
    link: str = ""
    """Address of an agent that the new node may link to."""
    issuer: str = ""
    """Address of the issuer that renews certificates (`hansa ca serve`)."""

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


class EnrolmentRequest(msgspec.Struct, frozen=True, array_like=True):
    """A certificate request, with the proof that its sender has the token."""

    request: bytes
    proof: bytes


def parse_token(text: str) -> Token:
    """Return a token; raise UsageError if it is none."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.msgpack.decode(data, type=Token)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise UsageError(
            "this is neither a file nor a token of hansa invite: copy the whole line"
        ) from error


# ---------------------------------------------------------------- the issuer


@dataclass(frozen=True, slots=True)
class InvitationTerms:
    """What an invitation grants, and until when it is open."""

    claims: Claims
    valid: timedelta
    """Validity of the certificate."""
    open_s: float
    """Seconds until the invitation ends."""


class Invitation:
    """One open invitation: a listening socket and a secret, for one node."""

    def __init__(
        self, authority: CertificateAuthority, terms: InvitationTerms, host: str, port: int
    ) -> None:
        """Listen; raise UsageError if that is impossible."""
        self._authority = authority
        self._terms = terms
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._context, self._fingerprint = make_pinned_context()
        self._server = ExchangeServer(host, port)
        self.port = self._server.port
        self._lock, self._report_lock = threading.Lock(), threading.Lock()
        self._made: NodeCertificate | None = None
        self._reports = 0
        self._now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self._on_refused: Callable[[str, str], None] = lambda remote, reason: None

    def token(self, host: str, port: int, link: str = "", issuer: str = "") -> str:
        """Return the token for a node that reaches this issuer at an address, an agent at `link`,
        and the one for renewals at `issuer`."""
        return Token(host, port, self._fingerprint, self._secret, link, issuer).encode()

    def close(self) -> None:
        self._server.close()

    def serve(
        self,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_refused: Callable[[str, str], None] = lambda remote, reason: None,
    ) -> NodeCertificate | None:
        """Wait for the node; return its certificate, None if it has not come in time."""
        deadline = time.monotonic() + self._terms.open_s
        self._now, self._on_refused = now, on_refused
        self._server.serve(
            self._serve_one, lambda: self._made is not None or time.monotonic() >= deadline
        )
        return self._made

    def _serve_one(self, exchange: Exchange) -> None:
        try:
            self._enrol(exchange, exchange.start_tls(self._context, is_server=True))
        except (OSError, UsageError, msgspec.DecodeError) as error:
            self._report(exchange, error)

    def _enrol(self, exchange: Exchange, connection: ssl.SSLSocket) -> None:
        data = receive_message(connection, REQUEST_BYTES_MAX)
        with self._lock:  # strangers cannot hold it: they have no proof
            try:
                given = msgspec.msgpack.decode(data, type=EnrolmentRequest)
                is_proved = hmac.compare_digest(_proof(self._secret, given.request), given.proof)
                if not is_proved or self._made is not None:
                    raise InvalidCertificate("the request does not match the invitation")
                exchange.is_proved = True
                made, bundle = self._authority.sign_request(
                    given.request, self._terms.claims, self._now(), self._terms.valid
                )
            except (UsageError, msgspec.DecodeError) as error:
                self._report(exchange, error)
                send_message(connection, IssuerReply(problem=str(error)))
                return
            send_message(connection, IssuerReply(bundle=bundle.pem))
            node, remote = f"{made.node:016x}", exchange.remote
            self._authority.record("enrolled", self._now(), node=node, address=remote)
            self._made = made

    def _report(self, exchange: Exchange, error: Exception) -> None:
        with self._report_lock:
            self._reports += 1
            if exchange.is_cut or self._reports > REPORTS_MAX:
                return
            self._on_refused(exchange.remote, str(error))
            details = {"address": exchange.remote, "reason": str(error)}
            with suppress(UsageError):  # the disk is full: the refusal stands
                self._authority.record("enrolment_refused", self._now(), **details)


# ---------------------------------------------------------------- the new node


def redeem(token: Token, request: bytes) -> Bundle:
    """Send a request to the issuer of a token; return what it signed, or raise UsageError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the token pins the certificate, see below
    address = f"{token.host}:{token.port}"
    try:
        with (
            socket.create_connection((token.host, token.port), EXCHANGE_TIMEOUT_S) as connected,
            context.wrap_socket(connected) as connection,
        ):
            seen = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").digest()
            if not hmac.compare_digest(seen, token.fingerprint):
                raise UsageError(
                    f"{address} is not the issuer of this token: another invitation, or an attack"
                )
            send_message(connection, EnrolmentRequest(request, _proof(token.secret, request)))
            reply = msgspec.msgpack.decode(
                receive_message(connection, MESSAGE_BYTES_MAX), type=IssuerReply
            )
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"the issuer at {address} does not answer: {error}; is hansa invite still running? A"
            " token can be used once"
        ) from error
    if reply.problem:
        raise UsageError(f"the issuer at {address} refuses: {reply.problem}")
    return parse_bundle(reply.bundle, "the reply of the issuer")


def join_with_token(state: Path, token: Token, now: datetime) -> Credentials:
    """Get a certificate for the node of a state directory, whose key is made if there is none."""
    key = load_key(state / KEY_FILE) or create_key(state / KEY_FILE)
    bundle = redeem(token, make_request(key))
    if token.issuer:
        save_issuer(state, token.issuer)
    return install(state, bundle, now)


# ---------------------------------------------------------------- both


def _proof(secret: bytes, request: bytes) -> bytes:
    return hmac.digest(secret, DOMAIN + request, "sha256")
