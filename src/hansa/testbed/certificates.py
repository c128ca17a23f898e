"""Certificates for agents of a local federation, signed in this process."""

from datetime import UTC, datetime
from pathlib import Path

from hansa.errors import UsageError
from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import DEFAULT_ROLES, Claims
from hansa.identity.credentials import install, load_credentials
from hansa.identity.keys import KEY_FILE, create_key, load_key
from hansa.protocol.settings import ProtocolSettings


def certify_state(ca: Path, state: Path, name: str, roles: tuple[str, ...] = DEFAULT_ROLES) -> None:
    """Give a state directory a certificate unless it has one for its key; make the authority in
    `ca` if there is none."""
    now = datetime.now(UTC)
    try:
        load_credentials(state, state / KEY_FILE, now)
    except UsageError:  # a new node, or one whose state or key was deleted
        if not ca.exists():
            CertificateAuthority.create(ca, ProtocolSettings().federation, now)
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = load_key(state / KEY_FILE) or create_key(state / KEY_FILE)
        _, bundle = CertificateAuthority(ca).sign(key.public_key(), Claims(name, roles), now)
        install(state, bundle, now)
