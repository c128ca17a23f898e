"""The Ed25519 key pair of a node or an authority, a PEM file that only its owner can read, and
signatures with it."""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from hansa.errors import UsageError
from hansa.journal.disk import replace_file
from hansa.protocol.model import NodeId, node_id

KEY_FILE = "key.pem"
"""Name of the file in the state directory of a node and in the directory of an authority."""


def load_key(path: Path) -> Ed25519PrivateKey | None:
    """Return the key of a file, None if there is no file; raise UsageError if it is unusable."""
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (TypeError, ValueError, UnsupportedAlgorithm):  # TypeError: it has a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            f"{path} is not an Ed25519 key without a password: remove it to run as a new node"
        )
    return key


def create_key(path: Path) -> Ed25519PrivateKey:
    """Create a key pair, durable when this returns."""
    key = Ed25519PrivateKey.generate()
    store_key(path, key)
    return key


def store_key(path: Path, key: Ed25519PrivateKey) -> None:
    """Write a key, replacing an earlier one."""
    try:
        replace_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def node_of(key: Ed25519PrivateKey) -> NodeId:
    return node_id(key.public_key().public_bytes_raw())


def sign(key: Ed25519PrivateKey, domain: bytes, data: bytes) -> bytes:
    """Sign data for one purpose, the domain: the signature proves nothing for another."""
    return key.sign(_signed_bytes(domain, data))


def verify(public_key: bytes, domain: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key signed this data for this domain."""
    try:
        key = Ed25519PublicKey.from_public_bytes(public_key)
        key.verify(signature, _signed_bytes(domain, data))
    except (InvalidSignature, ValueError):
        return False
    return True


def _signed_bytes(domain: bytes, data: bytes) -> bytes:
    """The length in front keeps the border between domain and data unambiguous."""
    return bytes((len(domain),)) + domain + data
