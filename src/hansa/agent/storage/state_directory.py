"""The state directory of an agent: key pair, incarnation, and what it keeps over restarts.

A lock keeps a second agent out. Files are readable by the owner only. Each write replaces a whole
file and is durable when it returns. The journals are subdirectories.

The key pair is Ed25519. The node id follows from the public key, which every hello carries. The
private key never leaves the directory. No peer asks for a proof of possession yet: until links are
authenticated, a peer that knows the public key can claim to be this node.
"""

import fcntl
import hashlib
import json
import os
import threading
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.errors import UsageError
from hansa.identity.keys import KEY_FILE, create_key, load_key
from hansa.journal.disk import replace_file
from hansa.protocol.clock import AHEAD_MAX_MS
from hansa.protocol.model import Identity, node_id

JOURNAL_DIRECTORY = "journal"
INBOX_DIRECTORY = "inbox"
"""Journals of local publications and of publications from other nodes."""

PEERS_FILE = "nodes"
"""Membership records of other nodes."""

LEASES_FILE = "leases"
"""How long other nodes have been unreachable, and which have expired."""

QUARANTINE_FILE = "quarantine"
"""Nodes that were quarantined for misbehaviour."""

RETAINED_FILE = "retained"
"""Versions of the retained values that the broker stores."""

SUBSCRIPTIONS_FILE = "subscriptions.log"
"""Subscriptions of the agent's session at the broker."""

ECHOES_FILE = "echoes"
"""Own publications that a broker of MQTT 3.1.1 will send back."""

CONNECT_MARKER_FILE = "connecting"
"""Exists while the agent connects to its broker."""

TOPOLOGY_FILE = "topology.json"
REDUNDANCY_FILE = "redundancy"
"""Last assignment of the manager with the addresses of other members; last redundancy."""

OLD_IDENTITY_FILE = "identity"
"""Identity of early versions: 32 public bytes, from which no key pair can be made."""


class StateDirectory:
    """The directory of one agent, locked while it runs."""

    def __init__(self, path: Path) -> None:
        """Open and lock the directory; create it if it does not exist."""
        self.path = path
        # A save in a background thread may overlap with the last save at shutdown.
        self._write_lock = threading.Lock()
        self.clock_behind_s = 0.0
        """Seconds by which the clock is behind the start of the previous incarnation."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
            descriptor = os.open(path / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
            self._lock = os.fdopen(descriptor, "w")
        except OSError as error:
            raise UsageError(
                f"cannot use the state directory {path}: {error.strerror}; choose another one with"
                " the setting state or HANSA_STATE"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UsageError(
                f"another agent runs with the state directory {path}; give this one its own"
            ) from error

    def close(self) -> None:
        self._lock.close()

    def start_incarnation(self, name: str, addresses: tuple[str, ...], capacity: float) -> Identity:
        key = self._private_key().public_key().public_bytes_raw()
        incarnation = self._next_incarnation()
        return Identity(node_id(key), key, incarnation, name, addresses, capacity)

    def manager_secret(self) -> str:
        """Return the secret that identifies this agent to its manager: a hash of the private
        key."""
        return hashlib.sha256(
            b"hansa manager" + self._private_key().private_bytes_raw()
        ).hexdigest()

    def save_incarnation(self, incarnation: int) -> None:
        """Save an incarnation that was raised at run time."""
        self._write("incarnation", str(incarnation).encode())

    def load_interest(self) -> object:
        """Return the last snapshot of the observer, None without one."""
        try:
            snapshot: object = json.loads((self.path / "interest.json").read_text())
        except (OSError, ValueError):
            return None
        return snapshot

    def save_interest(self, snapshot: object) -> None:
        self._write("interest.json", json.dumps(snapshot).encode())

    def load_topology(self) -> bytes:
        """Return the last topology assignment, empty without one."""
        return self._read_or_empty(TOPOLOGY_FILE)

    def save_topology(self, data: bytes) -> None:
        self._write(TOPOLOGY_FILE, data)

    def load_redundancy(self) -> int | None:
        """Return the last redundancy that the manager set, None if it never did."""
        text = self._read_or_empty(REDUNDANCY_FILE)
        return int(text) if text.isdigit() else None

    def save_redundancy(self, redundancy: int) -> None:
        """Save the redundancy that the manager set: all nodes must use the same."""
        self._write(REDUNDANCY_FILE, str(redundancy).encode())

    def _read_or_empty(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError:
            return b""  # the content is only a cache

    def load_peers(self) -> bytes:
        return self._read(PEERS_FILE)

    def load_leases(self) -> bytes:
        return self._read_or_empty(LEASES_FILE)

    def save_leases(self, data: bytes) -> None:
        self._write(LEASES_FILE, data)

    def load_quarantine(self) -> bytes:
        return self._read_or_empty(QUARANTINE_FILE)

    def save_quarantine(self, data: bytes) -> None:
        self._write(QUARANTINE_FILE, data)

    def load_retained(self) -> bytes:
        return self._read(RETAINED_FILE)

    def save_retained(self, data: bytes) -> None:
        self._write(RETAINED_FILE, data)

    def _read(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise UsageError(f"cannot read {self.path / name}: {error.strerror}") from error

    def save_peers(self, data: bytes) -> None:
        self._write(PEERS_FILE, data)

    def _private_key(self) -> Ed25519PrivateKey:
        path = self.path / KEY_FILE
        old = self.path / OLD_IDENTITY_FILE
        key = load_key(path)
        if key is None and old.exists():
            raise UsageError(
                f"{old} belongs to a version without key pairs: remove it to run as a new node"
            )
        return key or create_key(path)

    def _next_incarnation(self) -> int:
        """Return milliseconds since 1970, but more than the previous incarnation. A previous one
        that is so far ahead that other nodes refuse it came from a wrong clock and is ignored."""
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
        try:
            with self._write_lock:
                replace_file(self.path / name, data)
        except OSError as error:
            raise UsageError(f"cannot write {self.path / name}: {error.strerror}") from error
