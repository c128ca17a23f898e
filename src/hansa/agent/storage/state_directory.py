"""What an agent keeps between its lives: its key pair, its incarnation, what its clients wanted,
what other nodes want, and how its session at the broker stands. The journals have directories of
their own in it.

One directory, one agent: a lock keeps a second one out. Files are for the owner only, and every
write is either whole or not there.

The key pair is Ed25519. Its public half gives the node its id and is told in every hello; its
private half never leaves the directory. Nothing asks for a proof of it yet: until links are secure,
whoever sees the public half can claim to be this node.
"""

import fcntl
import hashlib
import json
import os
import threading
import time
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from hansa.errors import UsageError
from hansa.journal.disk import sync_directory
from hansa.protocol.clock import AHEAD_MAX_MS
from hansa.protocol.model import Identity, node_id

KEY_FILE = "key.pem"
"""The file with the private key, from which the public one follows."""

JOURNAL_DIRECTORY = "journal"
INBOX_DIRECTORY = "inbox"
"""The directories of what clients here published, and of what others did."""

PEERS_FILE = "nodes"
"""The file with what is known of other nodes."""

LEASES_FILE = "leases"
"""The file with how long others have been out of reach, and who was forgotten."""

RETAINED_FILE = "retained"
"""The file with the versions of the retained values that the broker holds."""

SUBSCRIPTIONS_FILE = "subscriptions.log"
"""The file with what the broker's session of the agent is subscribed to."""

CONNECT_MARKER_FILE = "greeting"
"""The file that is there while the agent connects to its broker."""

TOPOLOGY_FILE = "topology.json"
REDUNDANCY_FILE = "redundancy"
"""The files with what the manager said last, and where other members are."""

OLD_IDENTITY_FILE = "identity"
"""Where version 0.1 kept 32 bytes that it told everybody: no secret can be made of them."""


class StateDirectory:
    """The directory of one agent, locked while it runs."""

    def __init__(self, path: Path) -> None:
        """Open it, make it if need be, and lock it."""
        self.path = path
        self._write_lock = (
            threading.Lock()
        )  # what is saved in the background may meet the last save
        self.clock_behind_s = 0.0
        """How far the clock is behind the beginning of the life before this one."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            descriptor = os.open(path / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
            self._lock = os.fdopen(descriptor, "w")
        except OSError as error:
            raise UsageError(
                f"cannot use the state directory {path}: {error.strerror}; another one is chosen"
                " with state in the settings, or HANSA_STATE"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UsageError(
                f"another agent runs with the state directory {path}; give this one its own"
            ) from error

    def close(self) -> None:
        """Let the next agent in."""
        self._lock.close()

    def start_incarnation(self, name: str, addresses: tuple[str, ...], capacity: float) -> Identity:
        """Return who this agent is, in a new life."""
        key = self._private_key().public_key().public_bytes_raw()
        incarnation = self._next_incarnation()
        return Identity(node_id(key), key, incarnation, name, addresses, capacity)

    def manager_secret(self) -> str:
        """Return what this agent, and no other, shows its manager: it follows from the private key,
        and the key does not follow from it."""
        return hashlib.sha256(
            b"hansa manager" + self._private_key().private_bytes_raw()
        ).hexdigest()

    def save_incarnation(self, incarnation: int) -> None:
        """Keep an incarnation that was raised while running."""
        self._write("incarnation", str(incarnation).encode())

    def load_interest(self) -> object:
        """Return what the observer had learned, None if nothing is kept."""
        try:
            kept: object = json.loads((self.path / "interest.json").read_text())
        except (OSError, ValueError):
            return None
        return kept

    def save_interest(self, snapshot: object) -> None:
        """Keep what the observer has learned."""
        self._write("interest.json", json.dumps(snapshot).encode())

    def load_topology(self) -> bytes:
        """Return whom the agent knew and was linked to, nothing if nothing is kept."""
        return self._read_or_empty(TOPOLOGY_FILE)

    def save_topology(self, data: bytes) -> None:
        """Keep whom the agent knows and is linked to."""
        self._write(TOPOLOGY_FILE, data)

    def load_redundancy(self) -> int | None:
        """Return the redundancy that the manager asked for last, None if it never did."""
        text = self._read_or_empty(REDUNDANCY_FILE)
        return int(text) if text.isdigit() else None

    def save_redundancy(self, redundancy: int) -> None:
        """Keep the redundancy that the manager asks for: all nodes must have the same."""
        self._write(REDUNDANCY_FILE, str(redundancy).encode())

    def _read_or_empty(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError:
            return b""  # not there, or of no use: it is learned again

    def load_peers(self) -> bytes:
        """Return what is known of other nodes, nothing if nothing is kept."""
        return self._read(PEERS_FILE)

    def load_leases(self) -> bytes:
        """Return how long others had been out of reach, nothing if nothing is kept."""
        return self._read_or_empty(LEASES_FILE)

    def save_leases(self, data: bytes) -> None:
        """Keep how long others have been out of reach."""
        self._write(LEASES_FILE, data)

    def load_retained(self) -> bytes:
        """Return what is known of retained values, nothing if nothing is kept."""
        return self._read(RETAINED_FILE)

    def save_retained(self, data: bytes) -> None:
        """Keep what is known of retained values."""
        self._write(RETAINED_FILE, data)

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UsageError(f"cannot read {self.path / name}: {error.strerror}") from error

    def save_peers(self, data: bytes) -> None:
        """Keep what is known of other nodes; return when it is durable."""
        self._write(PEERS_FILE, data)

    def _private_key(self) -> Ed25519PrivateKey:
        path = self.path / KEY_FILE
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except FileNotFoundError:
            return self._new_key()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except (TypeError, ValueError, UnsupportedAlgorithm):  # the first if it has a password
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise UsageError(
                f"{path} holds no Ed25519 key without a password: remove it to run as a new node"
            )
        return key

    def _new_key(self) -> Ed25519PrivateKey:
        old = self.path / OLD_IDENTITY_FILE
        if old.exists():
            raise UsageError(
                f"{old} is of a version without key pairs: remove it to run as a new node"
            )
        key = Ed25519PrivateKey.generate()
        self._write(KEY_FILE, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return key

    def _next_incarnation(self) -> int:
        """Take it from the clock, and never go back with it. One that is so far ahead of the clock
        that every other node refuses it came from a clock that was wrong: it is not used again."""
        try:
            before = int((self.path / "incarnation").read_text())
        except (OSError, ValueError):
            before = 0
        now = time.time_ns() // 1_000_000
        self.clock_behind_s = max(0, before - now) / 1_000
        if before >= now + AHEAD_MAX_MS:
            before = 0
        incarnation = max(before + 1, now)
        self.save_incarnation(incarnation)
        return incarnation

    def _write(self, name: str, data: bytes) -> None:
        temporary = self.path / f"{name}.new"
        try:
            with self._write_lock:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(self.path / name)
                sync_directory(self.path)
        except OSError as error:
            raise UsageError(f"cannot write {self.path / name}: {error.strerror}") from error
