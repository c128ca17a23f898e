"""Renewal over the network: a node gets its next certificate from an issuer with the authority's
key.

    node                                         issuer (`hansa ca serve`)
    dials; mutual TLS with its certificate ──▶   checks chain, dates, federation, revocation
    request over the same key              ──▶   looks up what it issued to this node
                                           ◀──   certificate, roots, revocation list

The node proves its key by TLS, so no secret is needed. As on links, the side that dials is the TLS
server: strangers see neither a certificate nor the name of the federation. The new certificate has
the claims that the authority has signed last for this node; a request cannot ask for any.
"""

import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from hansa.errors import InvalidCertificate, UsageError
from hansa.identity import certificates
from hansa.identity.authority import (
    AUTHORITY_FILE,
    CROSS_FILE,
    INTERMEDIATE_FILE,
    Bundle,
    CertificateAuthority,
    check_renewal_request,
    make_request,
)
from hansa.identity.certificates import (
    NodeCertificate,
    check_issuer,
    intermediate_key,
    is_cross_certificate,
    is_issued_by,
    parse_chain,
)
from hansa.identity.credentials import Credentials, parse_bundle
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
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.revocation import parse_lists
from hansa.identity.tls import (
    LinkContexts,
    explain_handshake_error,
    make_issuer_context,
    peer_chain,
)
from hansa.protocol.model import NodeId

RENEWAL_PORT = 10_502

INTERVAL_S = 60.0
"""Seconds between two requests of one node that an issuer handles."""

CONTEXT_S = 86_400.0
"""Seconds after which an issuer makes itself a new certificate."""

REPORT_INTERVAL_S = 60.0
REPORTS_MAX = 20
"""Refusals in REPORT_INTERVAL_S seconds that are reported and written to the audit log; further
ones are only counted."""


class RenewalRequest(msgspec.Struct, frozen=True, array_like=True):
    """A certificate request over the key of the certificate that TLS has shown."""

    request: bytes


class RenewalRefused(UsageError):
    """The issuer has answered, and does not renew the certificate."""


# ---------------------------------------------------------------- the issuer


class Issuer:
    """Renews certificates of members, as long as `serve` runs."""

    def __init__(
        self, directory: Path, host: str, port: int, interval_s: float = INTERVAL_S
    ) -> None:
        """Listen; raise UsageError if that is impossible or there is no authority."""
        self._directory = directory
        self._interval_s = interval_s
        self.federation = CertificateAuthority(directory).federation
        self._server = ExchangeServer(host, port)
        self.port = self._server.port
        self.counters: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._context_of: tuple[object, ...] = ()
        self._context_until = 0.0
        self._asked: dict[NodeId, float] = {}
        """When each node has asked, within the last `interval_s` seconds."""
        self._reports = 0
        self._reports_until = 0.0
        self._is_stopped = threading.Event()

    def close(self) -> None:
        self._server.close()

    def stop(self) -> None:
        """Let `serve` return."""
        self._is_stopped.set()

    def serve(
        self,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_renewed: Callable[[str, NodeCertificate], None] = lambda remote, made: None,
        on_refused: Callable[[str, str], None] = lambda remote, reason: None,
    ) -> None:
        """Renew until `stop`. The callbacks get the address of the node, and what happened."""

        def serve_one(exchange: Exchange) -> None:
            try:
                made = self._renew(exchange, now())
            except (OSError, UsageError, msgspec.DecodeError) as error:
                if not exchange.is_cut:
                    self._report(exchange.remote, _explain(error), now(), on_refused)
            else:
                with self._lock:
                    self.counters["renewed"] += 1
                on_renewed(exchange.remote, made)

        self._server.serve(serve_one, self._is_stopped.is_set)
        self.counters["connections closed for newer ones"] += self._server.evicted
        self.counters += Counter()  # drops zeros

    def _renew(self, exchange: Exchange, now: datetime) -> NodeCertificate:
        connection = exchange.start_tls(self._issuer_context(now), is_server=False)
        presented = parse_chain(peer_chain(connection))
        exchange.is_proved = True
        data = receive_message(connection, REQUEST_BYTES_MAX)
        try:
            self._limit(presented.node)
            given = msgspec.msgpack.decode(data, type=RenewalRequest)
            check_renewal_request(given.request, presented)
            # Opened anew: `hansa ca revoke` and `hansa ca renew --root` run beside this.
            authority = CertificateAuthority(self._directory)
            made, bundle = authority.renew_presented(presented, now)
        except (UsageError, msgspec.DecodeError) as error:
            send_message(connection, IssuerReply(problem=str(error)))
            raise UsageError(f"node {presented.node:016x}: {error}") from error
        authority.record(
            "renewed", now, node=f"{made.node:016x}", address=exchange.remote,
            serial=f"{made.serial:x}",
        )  # fmt: skip
        send_message(connection, IssuerReply(bundle=bundle.pem))
        return made

    def _limit(self, node: NodeId) -> None:
        """Raise UsageError if a node asks too often."""
        with self._lock:
            now = time.monotonic()
            self._asked = {
                each: at for each, at in self._asked.items() if now - at < self._interval_s
            }
            if node in self._asked:
                raise UsageError(f"a node may ask once in {self._interval_s:.0f} s")
            self._asked[node] = now

    def _issuer_context(self, now: datetime) -> ssl.SSLContext:
        """Return the TLS context for the present roots."""
        files = (KEY_FILE, AUTHORITY_FILE, CROSS_FILE, INTERMEDIATE_FILE)
        with self._lock:
            found = tuple(_stamp(self._directory / name) for name in files)
            if (
                self._context is None
                or found != self._context_of
                or time.monotonic() > self._context_until
            ):
                self._context = make_issuer_context(CertificateAuthority(self._directory), now)
                self._context_of = found
                self._context_until = time.monotonic() + CONTEXT_S
            return self._context

    def _report(
        self, remote: str, reason: str, now: datetime, on_refused: Callable[[str, str], None]
    ) -> None:
        with self._lock:
            self.counters["refused"] += 1
            if time.monotonic() > self._reports_until:
                self._reports, self._reports_until = 0, time.monotonic() + REPORT_INTERVAL_S
            self._reports += 1
            if self._reports > REPORTS_MAX:
                self.counters["refusals not reported"] += 1
                return
        on_refused(remote, reason)
        with suppress(UsageError):  # the disk is full: the refusal stands
            authority = CertificateAuthority(self._directory)
            authority.record("renewal_refused", now, address=remote, reason=reason)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _explain(error: Exception) -> str:
    return explain_handshake_error(error) if isinstance(error, ssl.SSLError) else str(error)


# ---------------------------------------------------------------- the node


def request_renewal(contexts: LinkContexts, host: str, port: int, now: datetime) -> Bundle:
    """Ask an issuer for the next certificate of this node, and check it. Raise RenewalRefused if it
    refuses, UsageError if it cannot be reached or is not the issuer of this federation."""
    credentials = contexts.credentials
    key = load_key(credentials.key_file)
    if key is None:
        raise UsageError(f"{credentials.key_file} is missing")
    try:
        with socket.create_connection((host, port), EXCHANGE_TIMEOUT_S) as connected:
            with contexts.dialling.wrap_socket(connected, server_side=True) as connection:
                issuer, *authorities = peer_chain(connection)
                check_issuer(issuer, credentials.federation)
                credentials.check_authorities(authorities)
                _check_intermediate(tuple(authorities), credentials)
                send_message(connection, RenewalRequest(make_request(key)))
                data = receive_message(connection, MESSAGE_BYTES_MAX)
        reply = msgspec.msgpack.decode(data, type=IssuerReply)
    except ssl.SSLError as error:
        raise RenewalRefused(explain_handshake_error(error)) from error
    except (OSError, UnicodeError, msgspec.DecodeError) as error:
        raise UsageError(f"no answer: {error}") from error
    if reply.problem:
        raise RenewalRefused(reply.problem)
    return check_renewed(parse_bundle(reply.bundle, "the reply"), credentials, now)


def check_renewed(bundle: Bundle, credentials: Credentials, now: datetime) -> Bundle:
    """Return what of a bundle can be installed beside the present files; raise InvalidCertificate
    if it is not for this node. Of revocation lists the newest of each issuer is kept.

    The issuer may be a compromised intermediate: it must not choose the roots, or take over nodes
    of others."""
    chain = certificates.load_certificates(bundle.certificate, "the reply")
    made, present = certificates.parse_chain(chain), credentials.certificate
    if made.key != present.key:
        raise InvalidCertificate("the new certificate is for another key")
    certificates.check_federation(made, credentials.federation)
    for each in chain:
        certificates.check_dates(each, now)
    offered = certificates.load_certificates(bundle.roots, "the reply")
    roots = _accepted_roots(offered, made.authorities, credentials.roots)
    certificates.check_chain(chain, roots)
    _check_intermediate(made.authorities, credentials)
    if made.serial == present.serial or made.not_before < present.not_before:
        raise InvalidCertificate("the certificate in the reply is not newer than the present one")
    found = parse_lists(bundle.revoked, roots, "the revocation list") if bundle.revoked else ()
    updated = credentials.revoked.updated(found, now)
    if updated.lists:  # each must count with these roots, or the files could not be loaded
        tuple(parse_lists(updated.pem, roots, "the revocation list"))
    revoked = b"" if updated == credentials.revoked else updated.pem
    pem = b"".join(each.public_bytes(Encoding.PEM) for each in roots)
    return Bundle(bundle.certificate, pem, revoked)


def _accepted_roots(
    offered: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    known: Sequence[x509.Certificate],
) -> list[x509.Certificate]:
    """Return the offered roots that are known or that a known one has signed, and known ones that
    are newer: a reply may drop earlier roots, and not go back to them, because the lists of a later
    root would then not count."""
    crosses = [
        each
        for each in authorities
        if is_cross_certificate(each) and any(is_issued_by(each, root, 1) for root in known)
    ]

    def is_accepted(root: x509.Certificate) -> bool:
        return root in known or (
            is_issued_by(root, root)
            and any(
                (each.subject, each.public_key()) == (root.subject, root.public_key())
                for each in crosses
            )
        )

    accepted = [each for each in offered if is_accepted(each)]
    newer = [
        each
        for each in known
        if all(each.not_valid_before_utc > root.not_valid_before_utc for root in accepted)
    ]
    return [*newer, *accepted]


def _check_intermediate(
    authorities: tuple[x509.Certificate, ...], credentials: Credentials
) -> None:
    """Raise InvalidCertificate unless the same intermediate has issued a certificate as that of
    this node, or no intermediate either of them."""
    present = credentials.certificate.authorities
    if intermediate_key(authorities) != intermediate_key(present):
        raise InvalidCertificate(
            "the issuer is another authority than the one that has enrolled this node"
        )
