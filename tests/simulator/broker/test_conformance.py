"""The model broker against real ones: the same random scripts, packet for packet.

Against Mosquitto 2.0.11 as Debian 12 has it, and in long runs also against 2.1 of a later Debian.

Per connection, everything is compared: packets, their order, all fields (packet ids, DUP, reason
codes, properties) and whether the broker closes the connection. The only freedom is the order of
packets on different connections. Scripts do not contain what the model leaves out (see
`hansa.simulator.broker`), nor anything that depends on time: intervals are days. Those for 2.1 have
no wills.

A seed that showed a difference is a line in SEEDS_THAT_DIFFERED.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.agent.other_brokers.brokers import mosquitto_21
from tests.simulator.broker.comparison import Difference, compare
from tests.simulator.broker.scripts import Script

from hansa.mqtt.packets import PublishPacket
from hansa.simulator.broker import MosquittoModel, MosquittoVersion
from hansa.simulator.broker.filter_tree import Subscriber
from hansa.simulator.broker.incoming import IncomingWindow
from hansa.simulator.broker.outgoing import Added, Outgoing, OutgoingWindow
from hansa.simulator.broker.retained import RetainedMessages
from hansa.simulator.broker.session import Session
from hansa.simulator.broker.subscriptions import Subscriptions

SEEDS = 100
SEEDS_LONG = 4_000
SEEDS_2_1 = 1_000
SEEDS_PER_TEST = 25
SEEDS_UNTIL_CAUGHT = 100

SEEDS_THAT_DIFFERED = {
    0: "properties to a client of 3.1.1",
    1: "retained messages for a shared subscription",
    77: "one copy for a session that was restored after a restart",
    203: "a dropped publication does not send what waits",
    332: "retained messages count as changes when they are restored",
    439: "the will of a lost connection in the window of its own client",
    561: "a save right after the start",
    853: "wills are published in the order of the last connections",
}


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place for Mosquitto's database. It syncs every save, which memory does faster."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def unstable() -> tuple[str, ...]:
    """The command of Mosquitto 2.1, for which Debian 12 has no package."""
    return (str(mosquitto_21()),)


@pytest.mark.parametrize("seed", SEEDS_THAT_DIFFERED)
def test_seed_that_differed(mosquitto, directory, seed):
    compare((mosquitto,), directory, Script(seed))


@pytest.mark.parametrize("first", range(1_000_000, 1_000_000 + SEEDS, SEEDS_PER_TEST))
def test_random_scripts(mosquitto, directory, first):
    for seed in range(first, first + SEEDS_PER_TEST):
        compare((mosquitto,), directory, Script(seed))


def test_random_scripts_without_limits(mosquitto, directory):
    for seed in range(SEEDS_PER_TEST):
        compare((mosquitto,), directory, Script(seed, is_unlimited=True))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_random_scripts(mosquitto, directory):
    for seed in range(2_000_000, 2_000_000 + SEEDS_LONG):
        compare((mosquitto,), directory, Script(seed, is_unlimited=seed % 5 == 0))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_random_scripts_of_2_1(directory, unstable):
    for seed in range(3_000_000, 3_000_000 + SEEDS_2_1):
        script = Script(seed, MosquittoVersion.V2_1, is_unlimited=seed % 5 == 0)
        compare(unstable, directory, script)


# ---------------------------------------------------------------- the comparison can fail


def resend_without_dup(monkeypatch: pytest.MonkeyPatch) -> None:
    send = OutgoingWindow._send  # noqa: SLF001  the original

    def changed(self: OutgoingWindow, outgoing: Outgoing, second: int) -> object:
        outgoing.was_sent = False
        return send(self, outgoing, second)

    monkeypatch.setattr(OutgoingWindow, "_send", changed)


def repeated_qos2_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IncomingWindow, "find", lambda self, packet: None)


def smallest_free_packet_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(self: OutgoingWindow, qos: int) -> int:
        used = self.in_flight.keys() | {each.packet.packet_id for each in self.queue}
        return next(each for each in count(1) if each not in used) if qos else 0

    monkeypatch.setattr(OutgoingWindow, "next_packet_id", changed)


def no_local_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscriber, "no_local", property(lambda self: False, lambda *_: None))


def retain_as_published_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored = property(lambda self: False, lambda *_: None)
    monkeypatch.setattr(Subscriber, "retain_as_published", ignored)


def unlimited_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    add = OutgoingWindow.add

    def changed(self: OutgoingWindow, packet, expires_at: int, connected: bool, _: int) -> Added:
        return add(self, packet, expires_at, connected, 0)

    monkeypatch.setattr(OutgoingWindow, "add", changed)


def unlimited_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutgoingWindow, "_can_send", lambda self: True)


def window_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = OutgoingWindow._remove  # noqa: SLF001  the original

    def changed(self: OutgoingWindow, outgoing: Outgoing) -> int:
        remove(self, outgoing)
        return len(self.in_flight)

    monkeypatch.setattr(OutgoingWindow, "_remove", changed)


def refusal_returns_no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = MosquittoModel._refuse_publish  # noqa: SLF001  the original

    def changed(self: MosquittoModel, session: Session, packet: PublishPacket) -> None:
        refuse(self, session, packet)
        session.incoming.quota = 0

    monkeypatch.setattr(MosquittoModel, "_refuse_publish", changed)


def handshakes_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IncomingWindow, "saved", lambda self: [])


def packet_ids_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Session.begin_connection

    def changed(self: Session, *arguments) -> None:
        self.outgoing.last_packet_id = 0
        begin(self, *arguments)

    monkeypatch.setattr(Session, "begin_connection", changed)


def retained_messages_reversed(monkeypatch: pytest.MonkeyPatch) -> None:
    match = RetainedMessages.match
    monkeypatch.setattr(
        RetainedMessages, "match", lambda self, each: reversed(list(match(self, each)))
    )


def copies_sorted_by_identifier(monkeypatch: pytest.MonkeyPatch) -> None:
    match = Subscriptions.match

    def changed(self: Subscriptions, topic: str) -> list[Subscriber]:
        return sorted(match(self, topic), key=lambda each: each.identifier)

    monkeypatch.setattr(Subscriptions, "match", changed)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    resend_without_dup: 11,
    repeated_qos2_is_new: 1,
    smallest_free_packet_id: 2,
    no_local_ignored: 2,
    retain_as_published_ignored: 0,
    unlimited_queue: 26,
    unlimited_window: 1,
    window_counted: 10,
    refusal_returns_no_quota: 10,
    handshakes_not_saved: 10,
    packet_ids_begin_again: 11,
    retained_messages_reversed: 2,
    copies_sorted_by_identifier: 4,
}
"""Each with a seed that catches it; if scripts change, one of the next seeds will."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_changed_model_is_caught(mosquitto, directory, monkeypatch, mutant):
    mutant(monkeypatch)
    first = MUTANTS[mutant]
    with pytest.raises(Difference):
        for seed in range(first, first + SEEDS_UNTIL_CAUGHT):
            compare((mosquitto,), directory, Script(seed))
