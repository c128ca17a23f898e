"""The state directory: identity, incarnation, lock, saved files."""

import hashlib
import stat
import subprocess
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from hansa.agent.storage.state_directory import StateDirectory
from hansa.errors import UsageError
from hansa.protocol.clock import AHEAD_MAX_MS


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "state"


def identities(path, count=1):
    """Return the identities of successive incarnations."""
    found = []
    for _ in range(count):
        state = StateDirectory(path)
        try:
            found.append(state.start_incarnation("a", ("x:1",), 2.0))
        finally:
            state.close()
    return found


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_restart_keeps_id_and_raises_incarnation(path):
    first, second, third = identities(path, 3)
    assert first.node == second.node == third.node
    assert first.incarnation < second.incarnation < third.incarnation
    assert (first.name, first.addresses, first.capacity) == ("a", ("x:1",), 2.0)


def test_incarnation_increases_even_if_clock_is_set_back(path):
    ahead = identities(path)[0].incarnation + AHEAD_MAX_MS // 2
    state = StateDirectory(path)
    state.save_incarnation(ahead)
    state.close()
    assert identities(path)[0].incarnation == ahead + 1


def test_two_directories_are_two_nodes(tmp_path):
    assert identities(tmp_path / "a")[0].node != identities(tmp_path / "b")[0].node


def test_two_agents_cannot_share_a_directory(path):
    state = StateDirectory(path)
    with pytest.raises(UsageError, match="another agent runs with the state directory"):
        StateDirectory(path)
    state.close()
    StateDirectory(path).close()


def test_files_are_accessible_to_owner_only(path):
    path.mkdir(parents=True, mode=0o755)
    state = StateDirectory(path)
    state.start_incarnation("a", (), 1.0)
    state.save_interest({"a": 1})
    assert mode(path) == 0o700
    files = {each.name: mode(each) for each in path.iterdir()}
    assert files == dict.fromkeys(("incarnation", "interest.json", "key.pem", "lock"), 0o600)
    state.close()


def test_node_id_follows_from_public_key(path):
    identity = identities(path)[0]
    shown = ["openssl", "pkey", "-in", str(path / "key.pem"), "-pubout", "-outform", "DER"]
    public = subprocess.run(shown, check=True, capture_output=True).stdout[-32:]
    assert identity.key == public
    assert identity.node == int.from_bytes(hashlib.sha256(public).digest()[:8], "big")


def other_key(password: bytes | None) -> bytes:
    if password is None:
        return X25519PrivateKey.generate().private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
    return Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password)
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"abcd", b"\xff\xff", other_key(None), other_key(b"secret")],
    ids=["empty", "text", "bytes", "another kind", "password"],
)
def test_damaged_key_is_refused(path, content):
    identities(path)
    (path / "key.pem").write_bytes(content)
    with pytest.raises(UsageError, match="is not an Ed25519 key .*: remove it to run"):
        identities(path)
    assert (path / "key.pem").read_bytes() == content
    StateDirectory(path).close()


def test_unreadable_key_is_refused(path):
    (path / "key.pem").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"cannot read .*key.pem: Is a directory"):
        identities(path)


def test_identity_of_version_without_keys_is_refused(path):
    path.mkdir(parents=True)
    (path / "identity").write_text("ab" * 32)
    with pytest.raises(UsageError, match="belongs to a version without key pairs: remove it"):
        identities(path)
    (path / "identity").unlink()
    identities(path)


def test_incarnation_far_ahead_is_ignored(path):
    state = StateDirectory(path)
    state.save_incarnation((time.time_ns() // 1_000_000) + 2 * AHEAD_MAX_MS)
    state.close()
    incarnation = identities(path)[0].incarnation
    assert incarnation <= time.time_ns() // 1_000_000


def test_damaged_incarnation_starts_from_the_clock(path):
    identities(path)
    (path / "incarnation").write_text("many")
    before = time.time_ns() // 1_000_000
    assert before <= identities(path)[0].incarnation <= time.time_ns() // 1_000_000


def test_saved_values_are_loaded(path):
    state = StateDirectory(path)
    assert state.load_interest() is None
    state.save_interest({"sessions": {"c": ["a/#"]}})
    assert state.load_interest() == {"sessions": {"c": ["a/#"]}}
    (path / "interest.json").write_text("{")
    assert state.load_interest() is None
    state.close()


def test_path_that_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot use the state directory"):
        StateDirectory(tmp_path / "file")
