"""Authenticated encryption of datagrams, without sockets."""

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.identity.certified import certify, make_authority, now

from hansa.agent.links import sealed_datagrams
from hansa.agent.links.admission import TOO_MANY_BYTES
from hansa.agent.links.datagrams import DATAGRAM_BYTES_MAX, HEADER_BYTES, SEAL_BYTES
from hansa.agent.links.sealed_datagrams import (
    HANDSHAKE_BYTES_MAX,
    DatagramHandshake,
    DatagramOpener,
    DatagramSealer,
    LinkKeys,
)
from hansa.errors import InvalidCertificate
from hansa.identity.authority import CertificateAuthority
from hansa.identity.certificates import Claims
from hansa.identity.credentials import load_credentials
from hansa.identity.keys import KEY_FILE
from hansa.identity.tls import LinkContexts, make_contexts
from hansa.protocol.pair_authentication import REPLAY_WINDOW

KEY = bytes(range(32))
HEADER = b"header"


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return make_authority(tmp_path / "ca")


def contexts(state: Path) -> LinkContexts:
    return make_contexts(load_credentials(state, state / KEY_FILE, now()))


@pytest.fixture
def members(authority: CertificateAuthority, tmp_path: Path) -> tuple[LinkContexts, LinkContexts]:
    for name in ("listener", "dialler"):
        certify(authority, tmp_path / name, Claims(name))
    return contexts(tmp_path / "listener"), contexts(tmp_path / "dialler")


def exchange(
    listener: DatagramHandshake,
    dialler: DatagramHandshake,
    passes: Callable[[bytes], bool] = lambda body: True,
) -> None:
    """Carry datagrams until both sides have keys; each round, both send again what is missing."""
    for _ in range(200):
        queue = [(dialler, body) for body in listener.unacknowledged()]
        queue += [(listener, body) for body in dialler.unacknowledged()]
        while queue:
            target, body = queue.pop(0)
            if passes(body):
                other = listener if target is dialler else dialler
                queue += [(other, answer) for answer in target.receive(body)]
        if listener.is_acknowledged and dialler.is_acknowledged and listener.keys and dialler.keys:
            return
    raise AssertionError("no keys after 200 rounds")


def handshakes(
    members: tuple[LinkContexts, LinkContexts],
) -> tuple[DatagramHandshake, DatagramHandshake]:
    listener, dialler = members
    return DatagramHandshake(listener, False), DatagramHandshake(dialler, True)


def keys_of(handshake: DatagramHandshake) -> LinkKeys:
    assert handshake.keys
    return handshake.keys


def test_members_agree_on_keys_for_both_directions(members):
    listener, dialler = handshakes(members)
    exchange(listener, dialler)
    assert listener.certificate and dialler.certificate
    assert listener.certificate.claims.name == "dialler"
    assert dialler.certificate.claims.name == "listener"
    for one, other in ((listener, dialler), (dialler, listener)):
        sealed = keys_of(one).sealer.seal(HEADER, b"hello")
        assert b"hello" not in sealed
        assert keys_of(one).opener.open(HEADER, sealed) is None  # a reflected datagram
        assert keys_of(other).opener.open(HEADER, sealed) == b"hello"


@pytest.mark.parametrize("seed", range(5))
def test_handshake_survives_loss_and_repetition(members, seed):
    rng = random.Random(seed)
    listener, dialler = handshakes(members)
    exchange(listener, dialler, lambda body: rng.random() < 0.5)
    assert keys_of(dialler).opener.open(HEADER, keys_of(listener).sealer.seal(HEADER, b"x")) == b"x"
    before = keys_of(listener)
    for body in dialler.unacknowledged() + [bytes(4) + b"old", b"", b"?"]:
        listener.receive(body)
    assert keys_of(listener) is before


def test_every_datagram_fits_and_the_listener_says_nothing_of_itself_first(members):
    listener, dialler = handshakes(members)
    hello = listener.unsent()
    assert b"hansa" not in b"".join(hello)
    answers = [answer for body in hello for answer in dialler.receive(body)]
    assert max(map(len, [*hello, *answers])) <= DATAGRAM_BYTES_MAX - HEADER_BYTES


def refusal(listener: DatagramHandshake, dialler: DatagramHandshake) -> str:
    with pytest.raises(InvalidCertificate) as error:
        exchange(listener, dialler)
    return str(error.value)


def test_member_of_another_authority_is_refused(members, tmp_path):
    certify(make_authority(tmp_path / "other-ca"), tmp_path / "other")
    stranger = contexts(tmp_path / "other")
    said = "the peer's certificate is not signed by this federation's authority"
    assert refusal(DatagramHandshake(members[0], False), DatagramHandshake(stranger, True)) == said


def test_revoked_member_is_refused_before_it_sees_a_certificate(authority, members, tmp_path):
    authority.revoke("dialler", now())
    (tmp_path / "listener" / "revoked.pem").write_bytes(authority.revoked_pem)
    listener = DatagramHandshake(contexts(tmp_path / "listener"), False)
    dialler = DatagramHandshake(members[1], True)
    said = "the peer's certificate is refused: the certificate is revoked"
    assert refusal(listener, dialler) == said
    assert listener.unsent() == []
    assert dialler.certificate is None


def test_expired_member_is_refused(authority, members, tmp_path):
    yesterday = now() - timedelta(days=1)
    certify(authority, tmp_path / "old", valid=timedelta(hours=1), at=yesterday)
    found = load_credentials(tmp_path / "old", tmp_path / "old" / KEY_FILE, yesterday)
    dialler = DatagramHandshake(make_contexts(found), True)
    said = "the peer's certificate has expired"
    assert refusal(DatagramHandshake(members[0], False), dialler) == said


def test_bytes_before_authentication_are_bounded(members):
    listener, _ = handshakes(members)
    record = b"\x16\x03\x03\x40\x00" + bytes(1_000)
    with pytest.raises(InvalidCertificate) as error:
        for at in range(0, 2 * HANDSHAKE_BYTES_MAX, len(record)):
            listener.receive(at.to_bytes(2, "big") + bytes(2) + record)
    assert str(error.value) == TOO_MANY_BYTES


@pytest.mark.parametrize("at", [0, 7, 8, 12, -1])
def test_altered_datagram_is_refused_and_the_true_one_still_counts(at):
    sealed = bytearray(DatagramSealer(KEY).seal(HEADER, b"payload"))
    altered = bytearray(sealed)
    altered[at] ^= 1
    opener = DatagramOpener(KEY)
    assert opener.open(HEADER, bytes(altered)) is None
    assert opener.open(b"another", bytes(sealed)) is None
    assert opener.open(HEADER, bytes(sealed)) == b"payload"


@pytest.mark.parametrize("size", range(SEAL_BYTES + 1))
def test_short_datagram_is_refused(size):
    assert DatagramOpener(KEY).open(HEADER, bytes(size)) is None


def test_each_datagram_counts_once_in_any_order():
    sealer, opener, rng = DatagramSealer(KEY), DatagramOpener(KEY), random.Random(1)
    count = 500
    sealed = [sealer.seal(HEADER, b"%d" % number) for number in range(count)]
    order = rng.sample(sealed, len(sealed)) + rng.sample(sealed, len(sealed))
    opened = [data for body in order if (data := opener.open(HEADER, body)) is not None]
    assert sorted(map(int, opened)) == list(range(count))


def test_datagram_behind_the_window_is_refused():
    sealer, opener = DatagramSealer(KEY), DatagramOpener(KEY)
    sealed = [sealer.seal(HEADER, b"x") for _ in range(REPLAY_WINDOW + 1)]
    assert opener.open(HEADER, sealed[-1]) == b"x"
    assert opener.open(HEADER, sealed[0]) is None
    assert opener.open(HEADER, sealed[1]) == b"x"


def test_keys_are_replaced_and_a_late_datagram_of_the_old_key_still_counts(monkeypatch):
    monkeypatch.setattr(sealed_datagrams, "REKEY_DATAGRAMS", 10)
    sealer, opener = DatagramSealer(KEY), DatagramOpener(KEY)
    sealed = {number: sealer.seal(HEADER, b"%d" % number) for number in range(1, 36)}
    late = {9, 19}
    order = [n for n in range(1, 26) if n not in late] + [19, 9] + list(range(26, 36))
    opened = [opener.open(HEADER, sealed[number]) for number in order]
    assert opened == [None if number == 9 else b"%d" % number for number in order]
    same_key = DatagramOpener(KEY)
    monkeypatch.setattr(sealed_datagrams, "REKEY_DATAGRAMS", 100)
    assert same_key.open(HEADER, sealed[10]) is None  # it was not sealed with the first key


def test_whole_generation_lost_is_not_followed(monkeypatch):
    monkeypatch.setattr(sealed_datagrams, "REKEY_DATAGRAMS", 10)
    sealer, opener = DatagramSealer(KEY), DatagramOpener(KEY)
    sealed = {number: sealer.seal(HEADER, b"x") for number in range(1, 21)}
    assert opener.open(HEADER, sealed[20]) is None
    assert opener.open(HEADER, sealed[19]) == b"x"
    assert opener.open(HEADER, sealed[20]) == b"x"
