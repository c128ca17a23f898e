"""Loads what protects an agent: the node's certificate, and TLS and tokens of the endpoints."""

import ssl
import time
from collections.abc import Callable
from dataclasses import replace

from hansa.agent.admin.access import AdminAccess
from hansa.agent.admin.server import Protection
from hansa.agent.alarms import Alarms
from hansa.agent.audit_log import AuditLog
from hansa.agent.driver import Driver
from hansa.agent.event_log import EventLog
from hansa.agent.exposure import HostRule, is_loopback
from hansa.agent.links.security import LinkSecurity, utc_now
from hansa.agent.quarantine import QuarantineService
from hansa.agent.settings import AdminSettings, AgentSettings
from hansa.agent.storage.state_directory import StateDirectory
from hansa.errors import InvalidCertificate, UsageError
from hansa.identity.certificates import check_federation
from hansa.identity.credentials import Credentials, has_certificate
from hansa.identity.keys import KEY_FILE, load_key
from hansa.identity.records import MemberAuthenticator
from hansa.protocol.membership.authentication import Authenticator, PlainAuthenticator
from hansa.protocol.settings import ProtocolSettings


def load_security(
    settings: AgentSettings, state: StateDirectory, alarms: Alarms
) -> tuple[AgentSettings, LinkSecurity | None]:
    """Return the settings with the federation of the certificate, and the credentials of links,
    None without a certificate; raise UsageError if it is unusable."""
    directory = settings.certificate_directory
    if not has_certificate(directory):
        return settings, None
    security = LinkSecurity(directory, state.path / KEY_FILE, alarms.setter("certificate"))
    return _adopt_federation(settings, security.credentials), security


def watch_peers(
    driver: Driver,
    state: StateDirectory,
    alarms: Alarms,
    event_log: EventLog,
    security: LinkSecurity | None,
) -> None:
    """Let the driver strike and quarantine neighbours, and open the audit log."""
    node = driver.node
    event_log.audit = AuditLog(
        state.path, (node.id, node.membership.known[node.id].incarnation), alarms
    )
    set_alarm = alarms.setter("neighbour quarantined")
    quarantine = QuarantineService(
        state, set_alarm, event_log.audit, event_log.name_of, lambda: time.time_ns() / 1e9
    )
    quarantine.links = driver.links.values
    driver.guard.quarantine = quarantine
    driver.guard.security = security
    if security is not None:
        security.check_quarantine = quarantine.check
        security.on_event = event_log.audit.record


def make_authenticator(security: LinkSecurity | None) -> Authenticator:
    """Return what signs and checks records: nothing without a certificate."""
    if security is None:
        return PlainAuthenticator()
    key = load_key(security.credentials.key_file)
    assert key is not None  # the credentials were checked against it
    return MemberAuthenticator(key, lambda: security.credentials, utc_now)


def _adopt_federation(settings: AgentSettings, credentials: Credentials) -> AgentSettings:
    if settings.protocol.federation == ProtocolSettings().federation:
        protocol = replace(settings.protocol, federation=credentials.federation)
        return replace(settings, protocol=protocol)
    try:
        check_federation(credentials.certificate, settings.protocol.federation)
    except InvalidCertificate as error:
        raise UsageError(
            f"{error}: change [protocol] federation or the certificate in {credentials.directory}"
        ) from error
    return settings


def admin_protection(
    admin: AdminSettings, on_refused: Callable[[str, str], None] = lambda remote, reason: None
) -> Protection:
    """Return who may send requests; raise UsageError if the certificate is unusable."""
    is_exposed = not is_loopback(admin.host)
    # Without tokens, [admin] insecure lets every machine read, and none send commands.
    protects_pages = is_exposed and admin.is_protected
    access = AdminAccess(admin.token, admin.read_token, protects_pages, admin.operate_token)
    if is_exposed and not protects_pages:
        access.protect_commands()
    rule = HostRule(admin.host, admin.names)
    return Protection(rule, access, _https_context(admin), on_refused)


def _https_context(admin: AdminSettings) -> ssl.SSLContext | None:
    if not admin.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(admin.tls_certificate, admin.tls_key or None)
    except OSError as error:
        raise UsageError(
            f"[admin] tls_certificate: cannot use {admin.tls_certificate} with its key: {error}"
        ) from error
    return context
