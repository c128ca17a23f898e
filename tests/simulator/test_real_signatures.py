"""Runs with the keys, certificates and signatures of agents, in place of the simulated ones.

Ed25519 signs records and announcements, X.509 certificates say who is a member, and frames between
two nodes are sealed with X25519 and ChaCha20-Poly1305. The result must be that of the same run with
simulated signatures.
"""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.simulator.test_adversary import Attacked, attack

from hansa.identity import revocation
from hansa.identity.certificates import Claims, issue_node, issue_root
from hansa.identity.credentials import Credentials
from hansa.identity.key_exchange import X25519KeyExchange
from hansa.identity.records import MemberAuthenticator
from hansa.protocol.membership.authentication import FORGED, FORGED_ANNOUNCEMENT
from hansa.protocol.membership.rights import UNLIMITED, Rights
from hansa.protocol.model import NodeId
from hansa.simulator.result import SimulationResult
from hansa.simulator.world.authority import SimulatedAuthority
from hansa.simulator.world.site import IdentityAllocator, Site

pytestmark = pytest.mark.pure  # parts of the world are replaced

START = datetime(2026, 1, 1, tzinfo=UTC)
FEDERATION = "hansa"


class RealAuthority:
    """Issues certificates over the Ed25519 keys of a run."""

    def __init__(self) -> None:
        self._key = _private_key(b"root")
        self._root = issue_root(self._key, FEDERATION, START)
        self.keys: dict[bytes, Ed25519PrivateKey] = {}
        """By public key."""

    def make_key(self, allocator: IdentityAllocator, place: int, generation: int) -> bytes:
        key = _private_key(f"{place} {generation}".encode())
        public = key.public_key().public_bytes_raw()
        self.keys[public] = key
        return public

    def enrol(
        self, simulated: object, node: NodeId, key: bytes, rights: Rights = UNLIMITED
    ) -> MemberAuthenticator:
        assert rights == UNLIMITED
        private = self.keys[key]
        made = issue_node(self._root, self._key, private.public_key(), Claims(), START)
        assert made.node == node
        nowhere = Path("unused")
        credentials = Credentials(
            nowhere, nowhere, made, (made.x509,), (self._root,), revocation.Revocations()
        )
        return MemberAuthenticator(private, lambda: credentials, lambda: START)


def _private_key(name: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name).digest())


def play(word: str, *attacks: str, is_real: bool) -> Attacked:
    """Play attacks in a federation in which all nodes publish to all others. The ids are the same
    with real and with simulated signatures."""
    authority = RealAuthority()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            IdentityAllocator,
            "make_key",
            lambda self, place, generation: authority.make_key(self, place, generation),
        )
        if is_real:
            patch.setattr(
                SimulatedAuthority,
                "enrol",
                lambda self, *identity: authority.enrol(self, *identity),
            )
            patch.setattr(Site, "make_exchange_keys", lambda self, seed: X25519KeyExchange())
        return attack(*attacks, word=word, end_s=25.0)


def outcome(result: SimulationResult) -> SimulationResult:
    """Return a result without figures that depend on bytes or on the machine: certificates and
    signatures of agents have other sizes."""
    return replace(result, wall_s=0.0, fingerprint="", control_bytes={}, data_bytes=0)


@pytest.mark.parametrize("word", ["ring:4", "line:3"])
def test_result_is_that_of_simulated_signatures(word):
    real, simulated = (play(word, "replay-records", is_real=each) for each in (True, False))
    real.assert_harmless()
    assert outcome(real.result) == outcome(simulated.result)
    assert real.refused == simulated.refused
    sizes = [sum(each.result.control_bytes.values()) for each in (real, simulated)]
    assert sizes[0] > sizes[1]


def test_forgeries_are_refused_by_real_signatures():
    attacked = play(
        "ring:4",
        *("forge-node-records", "forge-interest", "lie-about-distances", "make-up-nodes"),
        *("forge-receipts", "forge-sealed", "forge-guaranteed", "replay-unicasts"),
        is_real=True,
    )
    attacked.assert_promises_kept()
    for reason in (FORGED, FORGED_ANNOUNCEMENT, "forged unicast", "altered publication"):
        assert attacked.refused[reason] > 0
    for site in attacked.simulation.world.honest_sites():
        assert site.node is not None
        assert site.node.sizes()["nodes"] == 4
