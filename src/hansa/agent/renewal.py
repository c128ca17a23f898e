"""Renews the certificate of this node at two thirds of its validity, if an issuer is known.

The files are replaced as `hansa join` does it, and links continue. An issuer that cannot be reached
is asked again with growing delays. The alarm `certificate not renewed` is raised when the issuer
refuses, or when a quarter of the time that is left for the renewal has passed.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime, timedelta

from hansa.agent.alarms import SetAlarm
from hansa.agent.links.security import LinkSecurity
from hansa.agent.links.settings import parse_address
from hansa.errors import UsageError
from hansa.identity.certificates import renewal_time, validity
from hansa.identity.credentials import install_files, load_issuer
from hansa.identity.renewal import RENEWAL_PORT, RenewalRefused, request_renewal

log = logging.getLogger("hansa.agent")

LOOK_MIN_S, LOOK_S = 0.1, 10.0
"""Seconds after which the agent looks again whether a renewal is due; less for certificates of
hours."""

RETRY_S, RETRY_MAX_S = 90.0, 3_600.0
"""Seconds until the second attempt, and at most between two; less for certificates of hours. An
issuer handles one request per node and minute."""

SPREAD = 30
"""Renewals are spread over this fraction of the validity, because nodes that were enrolled together
would ask together."""


class CertificateRenewer:
    """One agent's renewals."""

    def __init__(
        self,
        security: LinkSecurity,
        configured: str,
        set_alarm: SetAlarm,
        record: Callable[[str, str], None],
        rng: random.Random,
    ) -> None:
        """`configured` is the issuer of the settings, `record` adds an event to the audit log."""
        self._security = security
        self._configured = configured
        self._set_alarm = set_alarm
        self._record = record
        self._rng = rng
        self._position = rng.random()
        self._failures = 0
        self._wait_until: datetime | None = None

    @property
    def issuer(self) -> str:
        """Where certificates are renewed, empty if that is not known."""
        return self._configured or load_issuer(self._security.credentials.directory)

    async def run(self) -> None:
        """Renew whenever it is due."""
        while True:
            await self.renew_if_due()
            seconds = validity(self._security.credentials.certificate).total_seconds()
            await asyncio.sleep(max(LOOK_MIN_S, min(LOOK_S, seconds / 100)))

    async def renew_if_due(self) -> None:
        """Do once what `run` does."""
        issuer, now = self.issuer, self._security.clock()
        self._security.is_renewed = bool(issuer)
        certificate = self._security.credentials.certificate
        due = renewal_time(certificate) + validity(certificate) / SPREAD * self._position
        if now < due:
            self._failures, self._wait_until = 0, None
            self._set_alarm("")
        elif issuer and (self._wait_until is None or now >= self._wait_until):
            try:
                await self._renew(issuer, now)
            except UsageError as error:
                self._on_failure(issuer, error, now, due)

    async def _renew(self, issuer: str, now: datetime) -> None:
        address = parse_address(issuer, RENEWAL_PORT)
        contexts = self._security.contexts
        bundle = await asyncio.to_thread(request_renewal, contexts, address.host, address.port, now)
        install_files(contexts.credentials.directory, bundle)
        self._failures, self._wait_until = 0, None
        self._set_alarm("")
        log.info("certificate renewed issuer=%s", issuer)
        self._record("certificate_renewed", f"by the issuer at {issuer}")
        self._security.check()

    def _on_failure(self, issuer: str, error: UsageError, now: datetime, due: datetime) -> None:
        certificate = self._security.credentials.certificate
        longest = validity(certificate).total_seconds() / 50
        seconds = min(RETRY_MAX_S, RETRY_S * 2.0 ** min(self._failures, 10), longest)
        self._failures += 1
        self._wait_until = now + timedelta(seconds=seconds * self._rng.uniform(1.0, 1.5))
        log.warning("certificate not renewed issuer=%s reason=%s", issuer, error)
        self._record("renewal_failed", f"issuer {issuer}: {error}")
        is_refused = isinstance(error, RenewalRefused)
        if is_refused or now >= due + (certificate.not_after - due) / 4:
            verb = "refuses to renew" if is_refused else "does not renew"
            self._set_alarm(
                f"the issuer at {issuer} {verb} the certificate of this node, which ends at"
                f" {certificate.not_after:%Y-%m-%d %H:%M} UTC: {error}. The agent asks again; or"
                f" renew it with hansa ca renew {certificate.node:016x} and hansa join"
            )
