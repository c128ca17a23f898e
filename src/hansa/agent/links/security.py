"""The credentials of an agent's links: loaded at the start, and again when their files change.

Agents pass the newest revocation lists on to each other, each in a frame of its own that the node
does not see: when a link is admitted, and when a list changes; on links that lose frames also once
a minute. A list counts if a root has signed it, or an intermediate for what that has issued, and
its number is greater than that of the known one; so a file that is removed, or restored from a
backup, readmits no node while the agent runs.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from hansa.agent.alarms import SetAlarm
from hansa.agent.links.link import Link
from hansa.errors import InvalidCertificate, InvalidFrame, UsageError
from hansa.identity import revocation
from hansa.identity.authority import AUTHORITY_FILE, REVOKED_FILE
from hansa.identity.certificates import NodeCertificate, load_chain, parse_chain
from hansa.identity.credentials import CERTIFICATE_FILE, Credentials, load_credentials
from hansa.identity.key_exchange import X25519KeyExchange
from hansa.identity.revocation import RevocationList, Revocations
from hansa.identity.tls import LinkContexts, make_contexts
from hansa.journal.disk import replace_file
from hansa.protocol.model import NodeId
from hansa.protocol.wire.codec import FORMAT_VERSION

log = logging.getLogger("hansa.agent")

CHECK_INTERVAL_S = 1.0
"""Seconds between two looks at the files, and between two checks of the peers' certificates."""

CHECKS_PER_RECHECK = 60
"""Checks of the links' certificates per check of the certificates of all known nodes."""

BUFFER_BYTES = 1 << 18
"""Bytes of one read. All links share the buffer, because a read is decrypted at once."""

REVOCATION_FRAME = bytes((FORMAT_VERSION << 4 | 3,))
"""First byte of a frame with a revocation list; `protocol.wire.codec` uses 0, 1 and 2."""

WATCHED_FILES = (CERTIFICATE_FILE, AUTHORITY_FILE, REVOKED_FILE)

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class LinkSecurity:
    """What links need for TLS. A link keeps the contexts that it began with."""

    def __init__(
        self, directory: Path, key_file: Path, set_alarm: SetAlarm, clock: Clock = utc_now
    ) -> None:
        """Load the files; raise InvalidCertificate or UsageError if they are unusable."""
        self._directory = directory
        self._key_file = key_file
        self._set_alarm = set_alarm
        self.clock = clock
        self._newest = Revocations()  # of all lists so far, whatever became of the file
        self._files = self._file_stamps()
        self.contexts = self._load()
        self._reload_problem = ""
        self.is_renewed = False
        """Whether the agent renews its certificate automatically, before a warning is due."""
        self.known_certificates: Callable[[NodeId], tuple[bytes, ...]] = lambda node: ()
        """Returns the certificates in the record of a node."""
        self.links: Callable[[], Iterable[Link]] = tuple
        """Returns the open links."""
        self.check_quarantine: Callable[[NodeId], None] = lambda node: None
        """Raises InvalidCertificate for a node in quarantine."""
        self.on_event: Callable[[str, str], None] = lambda event, reason: None
        """Called with an event for the audit log and its reason."""
        self.on_checked: Callable[[], None] = lambda: None
        """Called when credentials have changed, and once a minute: certificates expire."""
        self._checks = 0
        self.buffer = memoryview(bytearray(BUFFER_BYTES))

    @property
    def credentials(self) -> Credentials:
        return self.contexts.credentials

    def make_exchange_keys(self) -> X25519KeyExchange:
        """Return new keys with which frames that relays carry prove their source."""
        return X25519KeyExchange()

    def status(self) -> dict[str, object]:
        """Return what /status shows."""
        certificate = self.credentials.certificate
        return {
            "federation": certificate.federation,
            "roles": list(certificate.claims.roles),
            "valid_until": certificate.not_after.isoformat(),
            "revoked": len(self.credentials.revoked.serials),
        }

    async def run(self) -> None:
        """Load changed files, and close the links of nodes that are no members any more."""
        while True:
            self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)

    def check(self) -> None:
        """Do once what `run` does."""
        credentials = self.credentials
        before = credentials.revoked
        stamps = self._file_stamps()
        if stamps != self._files:
            self._files = stamps
            self._reload()
        now = self.clock()
        self._checks += 1
        is_minute_over = self._checks % CHECKS_PER_RECHECK == 0
        self._set_alarm(
            self._reload_problem or self.credentials.expiry_warning(now, self.is_renewed)
        )
        for link in list(self.links()):
            if link.certificate is not None:
                try:
                    link.certificate = self._check_link(link.certificate, now)
                except InvalidCertificate as error:
                    link.close(f"not a member any more: {error}")
                else:
                    is_newer = self.credentials.revoked != before
                    is_due = is_newer or (is_minute_over and not link.is_ordered)
                    if is_due and link.is_admitted:
                        self.send_revocations(link)
        if self.credentials is not credentials or is_minute_over:
            self.on_checked()

    def _check_link(self, certificate: NodeCertificate, now: datetime) -> NodeCertificate:
        """Return the certificate of a neighbour: the one that it showed, or when that has expired,
        the one in its record, over the same key. Raise InvalidCertificate if it has none."""
        try:
            self.credentials.check_peer_later(certificate, now)
        except InvalidCertificate:
            self.credentials.check_peer(certificate)  # a revoked one has no successor
            chain = load_chain(self.known_certificates(certificate.node))
            # The node has checked the chain before it accepted the record.
            successor = parse_chain(chain) if chain else None
            if successor is None or successor.key != certificate.key:
                raise
            self.credentials.check_peer_later(successor, now)
            return successor
        return certificate

    # ------------------------------------------------------------ revocation

    def send_revocations(self, link: Link) -> None:
        """Send the revocation lists to a neighbour, if there are any."""
        if link.certificate is not None:
            for each in self.credentials.revoked.lists:
                link.send([REVOCATION_FRAME + each.data])

    def receive_revocations(self, frame: bytes) -> None:
        """Use a list from a neighbour if it is newer; raise InvalidFrame if it is not signed."""
        known = self.credentials.revoked
        if frame[1:] in [each.data for each in known.lists]:
            return
        try:
            found = revocation.parse_list(frame[1:], self.credentials.roots, "the frame")
        except InvalidCertificate as error:
            raise InvalidFrame(str(error)) from error
        updated = known.updated([found], self.clock())
        if updated == known:
            return
        log.warning("revocation list received number=%d", found.number)
        self.on_event("revocation", f"list {found.number} received from a neighbour")
        self._newest = updated
        try:
            replace_file(self._directory / REVOKED_FILE, updated.pem)
        except OSError as error:
            log.warning("revocation list not saved, a restart forgets it: %s", error)
            self._files = []  # nothing changed on disk: make `check` load all the same
        self.check()

    def _reload(self) -> None:
        try:
            self.contexts = self._load()
        except UsageError as error:
            self._reload_problem = f"the new files are not used: {error}"
        else:
            self._reload_problem = ""
            self._keep_newest()
            until = self.credentials.certificate.not_after
            log.info("certificate loaded valid_until=%s", until.isoformat())
            number = self.credentials.revoked.number
            self.on_event(
                "certificate_loaded", f"valid until {until.isoformat()}, revocation list {number}"
            )

    def _keep_newest(self) -> None:
        """Write the newest lists, if a file with fewer or older ones was installed."""
        path, newest = self._directory / REVOKED_FILE, self._newest.pem
        try:
            if newest and (not path.exists() or path.read_bytes() != newest):
                replace_file(path, newest)
                self._files = self._file_stamps()
        except OSError as error:
            log.warning("revocation lists not saved, a restart forgets them: %s", error)

    def _load(self) -> LinkContexts:
        found = load_credentials(self._directory, self._key_file, self.clock())
        kept = [each for each in self._newest.lists if _is_signed(each, found)]
        self._newest = found.revoked.updated(kept, self.clock())
        return make_contexts(replace(found, revoked=self._newest))

    def _file_stamps(self) -> list[tuple[int, int] | None]:
        return [_file_stamp(self._directory / name) for name in WATCHED_FILES]


def _is_signed(known: RevocationList, credentials: Credentials) -> bool:
    """Whether the present roots stand for a list: a new authority counts anew."""
    try:
        revocation.parse_list(known.data, credentials.roots, "the list")
    except InvalidCertificate:
        return False
    return True


def _file_stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is replaced."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
