"""TLS towards the clients of the proxy: its certificate, and the name that a client asks for.

A changed certificate is used for new connections; open ones keep theirs. If the new files are not
usable, the old certificate stays in use and the alarm `proxy certificate` says why.
"""

import asyncio
import datetime
import logging
import socket
import ssl
from pathlib import Path

from cryptography import x509

from hansa.agent.alarms import SetAlarm
from hansa.agent.broker.settings import ProxySettings
from hansa.errors import UsageError

log = logging.getLogger("hansa.agent")

EXPIRY_WARNING_DAYS = 7
"""Days before the certificate expires at which the alarm is raised."""

CLIENT_HELLO_BYTES_MAX = 1 << 14
"""Largest first message of a TLS client in bytes: that of one record."""

RETRY_S = 0.02
"""Seconds until the next look at a first message that is not complete."""


class ServerCertificate:
    """The certificate that clients of the proxy see."""

    def __init__(self, settings: ProxySettings, set_alarm: SetAlarm) -> None:
        """Load it; raise UsageError if the files are unusable."""
        self._certificate = Path(settings.tls_certificate)
        self._key = Path(settings.tls_key or settings.tls_certificate)
        self._set_alarm = set_alarm
        self._stamps = self._file_stamps()
        self._problem = ""
        self.context = self._load()
        self.check()

    def check(self) -> None:
        """Use changed files."""
        stamps = self._file_stamps()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self.context = self._load()
                self._problem = ""
                log.info("proxy certificate loaded valid_until=%s", self._valid_until.isoformat())
            except UsageError as error:
                self._problem = f"the new files are not used: {error}"
        self._set_alarm(self._problem or self._expiry_warning())

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self._certificate, self._key)
            found = x509.load_pem_x509_certificate(self._certificate.read_bytes())
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise UsageError(f"[proxy] tls_certificate, tls_key: {error}") from error
        self._valid_until = found.not_valid_after_utc
        return context

    def _file_stamps(self) -> list[tuple[int, int]]:
        stamps = []
        for path in (self._certificate, self._key):
            try:
                found = path.stat()
            except OSError:
                stamps.append((0, 0))
            else:
                stamps.append((found.st_mtime_ns, found.st_size))
        return stamps

    def _expiry_warning(self) -> str:
        left = self._valid_until - datetime.datetime.now(datetime.UTC)
        if left > datetime.timedelta(days=EXPIRY_WARNING_DAYS):
            return ""
        return f"the certificate for clients is valid until {self._valid_until.isoformat()}"


async def peek_server_name(client: socket.socket) -> str:
    """Return the name that a TLS client asks for, without taking its bytes from the socket; empty
    if it names none, or speaks something else."""
    while True:
        await _wait_readable(client)
        data = client.recv(CLIENT_HELLO_BYTES_MAX, socket.MSG_PEEK)
        name = find_server_name(data)
        if name is not None or not data or len(data) == CLIENT_HELLO_BYTES_MAX:
            return name or ""
        await asyncio.sleep(RETRY_S)


async def _wait_readable(client: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(client, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(client)


def find_server_name(data: bytes) -> str | None:
    """Return the name in the first message of a TLS client; empty if there is none, None if the
    message is not complete. OpenSSL decodes it."""
    found: list[str] = []

    def on_name(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> int:
        found.append(name or "")
        return ssl.ALERT_DESCRIPTION_USER_CANCELLED  # it is not answered

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = on_name
    incoming = ssl.MemoryBIO()
    incoming.write(data)
    try:
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        if not found:
            return None
    except ssl.SSLError:
        pass
    return found[0] if found else ""
