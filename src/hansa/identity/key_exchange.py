"""Keys that two nodes share: X25519, and ChaCha20-Poly1305 with the keys that follow from it.

The private key belongs to one run of an agent and is never written to disk (decision 0025).
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305


class ChaChaCipher:
    """Authenticated encryption with one key."""

    def __init__(self, key: bytes) -> None:
        self._aead = ChaCha20Poly1305(key)

    def seal(self, nonce: bytes, data: bytes, header: bytes) -> bytes:
        return self._aead.encrypt(nonce, data, header)

    def open(self, nonce: bytes, box: bytes, header: bytes) -> bytes | None:
        try:
            return self._aead.decrypt(nonce, box, header)
        except InvalidTag:
            return None


class X25519KeyExchange:
    """A new key pair."""

    def __init__(self) -> None:
        self._key = X25519PrivateKey.generate()
        self.public_key = self._key.public_key().public_bytes_raw()

    def agree(self, peer_key: bytes) -> bytes | None:
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(peer_key))
        except ValueError:  # a point of low order, or not 32 bytes
            return None

    def make_cipher(self, key: bytes) -> ChaChaCipher:
        return ChaChaCipher(key)
