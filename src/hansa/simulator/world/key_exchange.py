"""Stand-in for X25519 and encryption in simulations: deterministic and fast, and not secret.

A simulated attacker forges frames without computing these keys, so a keyed hash is enough to tell
its frames from genuine ones.
"""

import hashlib

from hansa.protocol.model import KEY_BYTES

_TAG_BYTES = 16


class SimulatedCipher:
    """Adds a tag to readable data."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, nonce: bytes, data: bytes, header: bytes) -> bytes:
        return data + self._tag(nonce, data, header)

    def open(self, nonce: bytes, box: bytes, header: bytes) -> bytes | None:
        data, tag = box[:-_TAG_BYTES], box[-_TAG_BYTES:]
        return data if tag == self._tag(nonce, data, header) else None

    def _tag(self, nonce: bytes, data: bytes, header: bytes) -> bytes:
        content = nonce + header + data
        return hashlib.blake2b(content, key=self._key, digest_size=_TAG_BYTES).digest()


class SimulatedKeyExchange:
    """The exchange key of one run of a simulated agent."""

    def __init__(self, run: str) -> None:
        """`run` names the run of the agent uniquely."""
        self.public_key = hashlib.blake2b(run.encode(), digest_size=KEY_BYTES).digest()

    def agree(self, peer_key: bytes) -> bytes | None:
        both = b"".join(sorted((self.public_key, peer_key)))
        return hashlib.blake2b(both, digest_size=KEY_BYTES).digest()

    def make_cipher(self, key: bytes) -> SimulatedCipher:
        return SimulatedCipher(key)
