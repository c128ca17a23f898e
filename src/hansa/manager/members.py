"""Agents at the manager's port for nodes: mutual TLS with certificates of the federation.

The manager takes the id of a node from its certificate, so a node speaks only for itself, and no
token is needed. As on links, the side that dials is the TLS server (decision 0042). Certificates,
roots and revocation lists are loaded again when their files change; a connection whose node is
revoked, or whose certificate has ended, is closed.
"""

import asyncio
import base64
import binascii
import logging
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from hansa.agent.links.security import REVOCATION_FRAME, LinkSecurity
from hansa.agent.renewal import CertificateRenewer
from hansa.errors import InvalidCertificate, InvalidFrame, UsageError
from hansa.identity.certificates import NodeCertificate, parse_chain
from hansa.identity.credentials import CERTIFICATE_FILE
from hansa.identity.keys import KEY_FILE
from hansa.identity.tls import peer_chain
from hansa.manager.connections import BoundedConnection
from hansa.manager.member_server import MemberServer

log = logging.getLogger("hansa.manager")

CHECK_INTERVAL_S = 1.0

MANAGER_ROLE = "manager"


@dataclass(frozen=True, slots=True)
class Member:
    """The node at the other end of a connection."""

    certificate: NodeCertificate | None
    problem: str = ""
    """Why its certificate is refused."""

    @property
    def node(self) -> str:
        return f"{self.certificate.node:016x}" if self.certificate else ""


class Members:
    """Who is a member of the federation, for one manager."""

    def __init__(self, directory: Path) -> None:
        """Load the manager's certificate; raise UsageError if it is unusable."""
        if not (directory / CERTIFICATE_FILE).exists():
            raise UsageError(
                f"--state {directory} has no certificate: make one with hansa ca sign --role"
                " manager --state DIR, or hansa invite --role manager and hansa join TOKEN"
                " --state DIR"
            )
        self.security = LinkSecurity(directory, directory / KEY_FILE, _log_changes())
        certificate = self.security.credentials.certificate
        if MANAGER_ROLE not in certificate.claims.roles:
            raise UsageError(
                f"--state {directory}: its certificate is that of a node. A manager needs one of"
                " its own: hansa ca sign --role manager --state DIR, or hansa invite --role manager"
                " and hansa join TOKEN --state DIR"
            )
        self._open: dict[asyncio.BaseTransport, Member] = {}

    @property
    def federation(self) -> str:
        return self.security.credentials.federation

    async def run(self) -> None:
        """Load changed files, renew the certificate, and close connections of nodes that are no
        members any more."""
        renewer = CertificateRenewer(self.security, "", _log_changes(), _log_event, random.Random())
        async with asyncio.TaskGroup() as group:
            group.create_task(renewer.run())
            group.create_task(self._check_forever())

    async def _check_forever(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)

    def check(self) -> None:
        """Load changed files, and close connections."""
        self.security.check()
        for transport, member in list(self._open.items()):
            if reason := self.refusal(member):
                log.warning("node refused node=%s reason=%s", member.node, reason)
                transport.abort()  # type: ignore[attr-defined]

    def opened(self, transport: asyncio.Transport) -> Member:
        """Return the node of a new connection."""
        try:
            member = Member(parse_chain(peer_chain(transport.get_extra_info("ssl_object"))))
        except InvalidCertificate as error:
            return Member(None, str(error))
        self._open[transport] = member
        return member

    def closed(self, transport: asyncio.Transport) -> None:
        self._open.pop(transport, None)

    def refusal(self, member: Member) -> str:
        """Return why the requests of a node are refused now; empty if they are not."""
        if member.certificate is None:
            return member.problem
        try:
            self.security.credentials.check_peer_later(member.certificate, self.security.clock())
        except InvalidCertificate as error:
            return str(error)
        return ""

    def receive_list(self, text: str) -> None:
        """Use a revocation list that a node has sent, if it is signed and newer."""
        try:
            data = base64.b64decode(text, validate=True)
            self.security.receive_revocations(REVOCATION_FRAME + data)
        except (binascii.Error, ValueError, InvalidFrame) as error:
            raise UsageError("the revocation list is not valid here") from error
        self.check()

    def make_protocol_class(self) -> type[BoundedConnection]:
        """Return the protocol of connections of nodes: a request has its node in its state."""
        members = self

        class OfNode(BoundedConnection):
            waiting: ClassVar[dict[H11Protocol, asyncio.TimerHandle]] = {}

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                self.app_state = {**self.app_state, "member": members.opened(transport)}
                super().connection_made(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                members.closed(self.transport)
                super().connection_lost(exc)

        return OfNode

    def make_server(
        self, sockets: list[socket.socket], make_protocol: Callable[[], asyncio.Protocol]
    ) -> MemberServer:
        return MemberServer(sockets, make_protocol, self.security)


def _log_changes() -> Callable[[str], None]:
    """Return what logs a problem once; a manager has no alarms."""
    last = ""

    def report(problem: str) -> None:
        nonlocal last
        if problem and problem != last:
            log.warning("certificate of the manager: %s", problem)
        last = problem

    return report


def _log_event(event: str, reason: str) -> None:
    log.info("certificate of the manager event=%s reason=%s", event, reason)
