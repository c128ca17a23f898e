"""Known errors inserted into guaranteed delivery: `GuaranteedDelivery` must detect each.

Each has a small script, which the correct protocol runs without a violation.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs
from tests.simulator.test_mutants import caught

from hansa.delivery.capture import Capture
from hansa.delivery.core import DeliveryCore
from hansa.delivery.dedup.redelivery import RedeliveryFilter
from hansa.delivery.effects import SendHandshakePackets
from hansa.delivery.injection import Injection
from hansa.delivery.outbox import OutboxLog
from hansa.mqtt.packets import PubAckPacket, PubRecPacket, PubRelPacket
from hansa.protocol import effects
from hansa.protocol.delivery.inbox import Inbox, OriginStream
from hansa.protocol.delivery.outbox import Outbox
from hansa.protocol.forwarding.engine import ForwardingEngine
from hansa.protocol.interest.remote import RemoteInterest
from hansa.protocol.membership.overlay import Overlay
from hansa.protocol.node import Node
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.actions import (
    BackUpState,
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    CrashAgent,
    CutLink,
    RefuseAgent,
    RestartAgent,
    RestartBroker,
    RestoreLink,
    RollBackState,
    SimulatedAction,
    StallDisk,
)
from hansa.simulator.options import DiskOptions, LinkOptions, Phases

Script = Sequence[tuple[float, SimulatedAction]]

DISK = DiskOptions(sync_ms=5.0)
SLOW_SIDE = LinkOptions(delays_ms=((0, 1, 30.0),))
LOSSY = LinkOptions(loss=0.2)


def broken(script: Script, word: str = "line:2", **options) -> set[str]:
    """Run a script of 30 s with disks; return the names of the violated invariants."""
    options.setdefault("disk", DISK)
    return caught(word, script, phases=Phases(warm_up_s=30.0), **options)


CRASH_BEFORE_SYNC = [
    (0.0, ClientSubscribe(1, "a")),
    (5.0, ClientPublish(0, "a", qos=1)),
    (5.002, CrashAgent(0)),
    (6.0, RestartAgent(0)),
]
"""The origin crashes between receiving a publication and the sync of its journal."""

CRASH_AFTER_SENDING = [
    (0.0, ClientSubscribe(1, "a")),
    (4.0, ClientPublish(0, "a", qos=1)),  # or the next life begins a new epoch
    (5.0, StallDisk(0, 1.0)),
    (5.0, ClientPublish(0, "a", qos=1)),
    (5.5, CrashAgent(0)),
    (5.6, RestartBroker(0)),
    (5.7, RestartAgent(0)),
    (8.0, ClientPublish(0, "a", qos=1)),
]
"""The origin's disk stalls, it crashes, and its broker loses what it was about to capture."""

LATE_COPIES = [
    *((0.0, ClientSubscribe(node, "a")) for node in range(8)),
    (5.0, ClientPublish(0, "a", qos=1, count=100, interval_s=0.001)),
]
"""Many publications over a ring with a slow side: copies arrive long after the first."""

RECEIVER_CRASHES = [
    (0.0, ClientSubscribe(1, "a")),
    (5.0, StallDisk(1, 1.0)),
    (5.0, ClientPublish(0, "a", qos=1, count=3, interval_s=0.01)),
    (5.5, CrashAgent(1)),
    (6.0, RestartAgent(1)),
]
"""The receiver's disk stalls, and it crashes before anything is synced."""

COVERED = [
    (0.0, ClientSubscribe(1, "a/b")),
    (4.0, ClientPublish(0, "a/b", qos=1, count=1_200, interval_s=0.01)),
    *(
        (5.0 + turn, ClientUnsubscribe(1, "a/#") if turn % 2 else ClientSubscribe(1, "a/#"))
        for turn in range(10)
    ),
]
"""A client repeatedly adds and removes `a/#` while subscribed to `a/b`, and copies get lost."""

UNPERSISTED = [
    (0.0, ClientSubscribe(2, "a")),
    (5.0, StallDisk(0, 2.0)),
    (5.1, ClientSubscribe(1, "a")),
    (6.0, CrashAgent(0)),
    (6.5, ClientPublish(0, "a", qos=1)),
    (6.6, CrashAgent(1)),
    (8.0, RestartAgent(0)),
    (12.0, RestartAgent(1)),
]
"""The origin crashes with an interest that its stalled disk has not persisted. It is subscribed to
the topic already, because of a third node."""

PENDING_RESTART = [
    (0.0, ClientSubscribe(1, "a")),
    (5.0, ClientPublish(0, "a", qos=1)),
    (6.0, CutLink(0, 1)),
    (6.5, ClientPublish(0, "a", qos=1, count=3)),
    (8.0, RestartAgent(0)),
    (10.0, RestoreLink(0, 1)),
]
"""The origin restarts with publications pending for an unreachable node, and publishes no more."""

ROLLED_BACK = [
    (0.0, ClientSubscribe(1, "a")),
    (4.0, ClientPublish(0, "a", qos=1)),
    (5.0, BackUpState(0)),
    (6.0, ClientPublish(0, "a", qos=1, count=3)),
    (8.0, CutLink(0, 1)),
    (9.0, RollBackState(0)),
    (10.0, ClientPublish(0, "a", qos=1, count=5)),
    (12.0, RestoreLink(0, 1)),
]
"""The origin is rolled back before positions that it then assigns again, while isolated."""

ROLLED_BACK_TO_NOTHING = [
    (0.0, ClientSubscribe(1, "a")),
    (4.0, BackUpState(0)),
    (6.0, ClientPublish(0, "a", qos=2, count=5)),
    (9.0, RollBackState(0)),
    (10.0, ClientPublish(0, "a", qos=2, count=9)),
]
"""The origin is rolled back to before its first publication."""

EXPIRED = [
    (0.0, ClientSubscribe(2, "a")),
    (5.0, CutLink(0, 1)),
    (15.0, RestoreLink(0, 1)),
    (28.0, ClientPublish(0, "a", qos=2)),
]
"""A node behind the one that was cut off is unreachable for longer than the lease."""

GAP_BEHIND_OTHERS = [
    (0.0, ClientSubscribe(1, "a")),
    (5.0, RefuseAgent(1, 10.0)),
    (6.0, ClientPublish(0, "a", qos=1, count=5)),
    (8.0, CutLink(0, 1)),
    (8.5, ClientPublish(0, "a", qos=1, count=20)),
    (10.0, RestoreLink(0, 1)),
    (13.0, RestartAgent(1)),
]
"""The receiver's broker refuses it and its inbox is full when the origin drops later
publications."""

LATE_S = 12.0
DROPPED_BEFORE = [
    (0.0, ClientSubscribe(1, "a")),
    (5.0, CutLink(0, 1)),
    (6.0, ClientPublish(0, "a", qos=1, count=5)),
    (8.0, RestoreLink(0, 1)),
    (LATE_S, CutLink(0, 1)),
    (LATE_S + 1, ClientPublish(0, "a", qos=1)),
    (LATE_S + 2, RestoreLink(0, 1)),
]
"""A small journal drops a pending publication, but keeps later ones."""

ACKNOWLEDGEMENT_LOST = [
    (0.0, ClientSubscribe(1, "a")),
    (5.0, ClientPublish(0, "a", qos=1)),
    (5.00515, RefuseAgent(0, 0.1)),
    (5.00516, CrashAgent(0)),
    (6.0, RestartAgent(0)),
]
"""The origin crashes after the sync, before its broker gets the acknowledgement."""

RELEASED = [
    (0.0, ClientSubscribe(1, "a")),
    *((3.0 + 2 * step, ClientPublish(0, "a", qos=2)) for step in range(12)),
    *((3.0 + 2 * step + 0.010 + 0.001 * step, RestartAgent(1)) for step in range(12)),
]
"""The receiver crashes a little later each time, from before PUBLISH until after PUBCOMP."""

SUBSCRIBED_AGAIN = [
    (0.0, ClientSubscribe(1, "a")),
    (8.0, ClientUnsubscribe(1, "a")),
    (9.0, ClientPublish(0, "a", qos=1)),  # comes when nobody wants it
    (9.6, ClientSubscribe(1, "a")),
    (9.7, ClientPublish(0, "a", qos=1)),
    (10.9, RestartAgent(0)),  # before its broker knows that the first is done with
    (20.0, ClientPublish(0, "a", qos=1)),
]
"""Brokers are a second away. A publication acknowledged without interest is redelivered, when there
is interest again: it arrives after later ones."""

OUTDATED = [
    (0.0, ClientSubscribe(1, "a/#")),
    (8.0, ClientUnsubscribe(1, "a/#")),
    (8.7, ClientSubscribe(1, "a/b")),
    (8.7, ClientPublish(0, "a/b", qos=1)),  # comes when nobody wants it
    (20.0, ClientPublish(0, "a/b", qos=1)),
]
"""Brokers are a second away. The receiver's acknowledged interest belongs to a subscription that
has ended, which its agent does not know yet."""

SCRIPTS = {
    "rolled back": ROLLED_BACK,
    "rolled back to nothing": ROLLED_BACK_TO_NOTHING,
    "released": RELEASED,
    "crash before sync": CRASH_BEFORE_SYNC,
    "crash after sending": CRASH_AFTER_SENDING,
    "receiver crashes": RECEIVER_CRASHES,
    "pending restart": PENDING_RESTART,
    "acknowledgement lost": ACKNOWLEDGEMENT_LOST,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_violation_without_mutant(name):
    assert broken(SCRIPTS[name]) == set()


def test_no_violation_with_changing_filters():
    assert broken(COVERED, links=LOSSY) == set()


@pytest.mark.parametrize(
    "script", [SUBSCRIBED_AGAIN, OUTDATED], ids=["subscribed again", "outdated"]
)
def test_unobserved_subscription_is_not_guaranteed(script):
    assert broken(script, links=LinkOptions(broker_delay_ms=1_000.0)) == set()


def test_no_violation_with_late_copies():
    assert broken(LATE_COPIES, "ring:8", links=SLOW_SIDE) == set()


# ---------------------------------------------------------------- the origin


def test_mutant_puback_before_sync(monkeypatch):
    receive = Capture.receive_publications

    def hasty(self, batch):
        receive(self, batch)
        acks = [PubAckPacket(publish.packet_id) for publish, _ in batch]
        self._context.effects.append(SendHandshakePackets(acks))

    monkeypatch.setattr(Capture, "receive_publications", hasty)
    assert "guaranteed" in broken(CRASH_BEFORE_SYNC)


def test_mutant_copies_before_sync(monkeypatch):
    keep = ForwardingEngine._assign_position  # noqa: SLF001

    def hasty(self, event, plan, version):
        made = keep(self, event, plan, version)
        copies = [
            self.originate(e.publication) for e in made if isinstance(e, effects.AppendToJournal)
        ]
        return [*made, *(send for sends in copies for send in sends)]

    monkeypatch.setattr(ForwardingEngine, "_assign_position", hasty)
    assert "guaranteed" in broken(CRASH_AFTER_SENDING)


def test_mutant_forgotten_receivers_after_restart(monkeypatch):
    restore = DeliveryCore.restored_state
    monkeypatch.setattr(
        DeliveryCore, "restored_state", lambda self: replace(restore(self), last_assigned={})
    )
    assert "guaranteed" in broken(PENDING_RESTART)


def test_mutant_copies_before_progress_is_reported(monkeypatch):
    """A lost state assigned these positions before."""
    resume = Outbox.restore

    def trusting(self, last_assigned, acknowledged, unreported_since):
        resume(self, last_assigned, acknowledged, dict.fromkeys(last_assigned, 0))

    monkeypatch.setattr(Outbox, "restore", trusting)
    assert "guaranteed" in broken(ROLLED_BACK)


def test_mutant_empty_journal_continues_epoch(monkeypatch):
    """Nothing shows that the journal is an old copy whose positions were assigned before."""
    monkeypatch.setattr(OutboxLog, "is_empty", False)
    assert broken(ROLLED_BACK_TO_NOTHING) == {"guaranteed"}


def test_mutant_expired_node_does_not_refresh_its_record(monkeypatch):
    """Its record is unchanged, and others refuse the expired version."""
    short = ProtocolSettings(interest_lease=5.0)
    assert broken(EXPIRED, "line:3", protocol=short) == set()
    monkeypatch.setattr(Overlay, "_refresh_own_record", lambda self, request, now: [])
    assert broken(EXPIRED, "line:3", protocol=short) == {"convergence", "guaranteed"}


def test_mutant_forgotten_packet_ids(monkeypatch):
    monkeypatch.setattr(RedeliveryFilter, "match_redelivery", lambda self, publish: None)
    assert "guaranteed" in broken(ACKNOWLEDGEMENT_LOST)


def test_mutant_interest_acknowledged_before_it_is_persisted(monkeypatch):
    assert broken(UNPERSISTED, "line:3") == set()
    mark = RemoteInterest.mark_unpersisted

    def trust_the_disk(self, node):
        mark(self, node)
        self._unpersisted.pop(node, None)

    monkeypatch.setattr(RemoteInterest, "mark_unpersisted", trust_the_disk)
    assert "guaranteed" in broken(UNPERSISTED, "line:3")


# ---------------------------------------------------------------- the receiver


def test_mutant_small_duplicate_cache(monkeypatch):
    """The last 8 positions instead of all accepted ones."""
    take = Inbox.receive_copy

    def take_if_not_recent(self, publication, now):
        recent = self.__dict__.setdefault("recent", deque(maxlen=8))
        name = (publication.origin, publication.sequence)
        stream = self.streams.get(publication.origin)
        if stream is not None and name not in recent:
            stream.accepted = min(stream.accepted, publication.sequence - 1)
        recent.append(name)
        return take(self, publication, now)

    monkeypatch.setattr(Inbox, "receive_copy", take_if_not_recent)
    assert "guaranteed" in broken(LATE_COPIES, "ring:8", links=SLOW_SIDE)


def test_mutant_record_after_pubcomp(monkeypatch):
    """As usual in clients: the broker has released it, and no record says so."""

    def release_at_once(self, entry, packet):
        if type(packet) is PubRecPacket:
            release = PubRelPacket(entry.packet_id)
            self._context.effects.append(SendHandshakePackets([release]))
        else:
            self._finish_handshake(entry, packet)

    monkeypatch.setattr(Injection, "_apply_step", release_at_once)
    assert broken(RELEASED) == {"guaranteed"}


def test_mutant_receipt_before_sync(monkeypatch):
    monkeypatch.setattr(OriginStream, "committed", property(lambda self: self.accepted))
    accept = Inbox._accept  # noqa: SLF001

    def accept_and_report(self, stream, publication):
        self._schedule_receipt(publication.origin, stream, 5.0)
        return accept(self, stream, publication)

    monkeypatch.setattr(Inbox, "_accept", accept_and_report)
    assert "guaranteed" in broken(RECEIVER_CRASHES)


def test_mutant_ignored_pending_notice(monkeypatch):
    """A burst without a later publication: without pending notices its end would never be
    requested."""
    script = [
        (0.0, ClientSubscribe(1, "a")),
        (9.0, ClientPublish(0, "a", qos=1, count=30, interval_s=0.001)),
    ]
    narrow = LinkOptions(delay_ms=500.0, frames_in_flight_max=5)
    assert broken(script, links=narrow) == set()
    monkeypatch.setattr(Inbox, "receive_pending_notice", lambda self, notice, now: [])
    assert broken(script, links=narrow) == {"guaranteed"}


def test_mutant_gap_overtakes_inbox(monkeypatch):
    small = DiskOptions(sync_ms=5.0, journal_max=10, inbox_max=2)
    assert broken(GAP_BEHIND_OTHERS, disk=small) == set()

    add = Injection.add_publications

    def hasty(self, batch):
        for each in batch:
            if isinstance(each, effects.Gap):
                self.inbox.record_gap(each.origin, each.epoch, each.first, each.last, each.reason)
                self.group_commit.request()
        add(self, [each for each in batch if not isinstance(each, effects.Gap)])

    monkeypatch.setattr(Injection, "add_publications", hasty)
    assert broken(GAP_BEHIND_OTHERS, disk=small) == {"guaranteed"}


@pytest.mark.parametrize("reason", ["retention", "new epoch", "end of lease", "nodes_max"])
def test_mutant_receiver_abandons_available_publications(monkeypatch, reason):
    """For any reason; also at an origin whose journal once dropped something else."""
    receive = Inbox.receive_pending_notice

    def lazy(self, notice, now):
        effects = receive(self, notice, now)
        return (
            [*effects, *self._abandon_missing(notice.source, reason)] if now > LATE_S else effects
        )

    small = DiskOptions(sync_ms=5.0, journal_max=2)
    assert broken(DROPPED_BEFORE, disk=small) == set()
    monkeypatch.setattr(Inbox, "receive_pending_notice", lazy)
    assert broken(DROPPED_BEFORE, disk=small) == {"guaranteed"}


def test_mutant_unknown_interest_treated_as_none(monkeypatch):
    """A receiver drops publications without a subscriber before its observer has reported."""
    handle = Node.handle

    def leave_out(self, event, now):
        return [
            effect
            for effect in handle(self, event, now)
            if not isinstance(effect, effects.Deliver)
            or self._local_interest.has_plain_subscriber(effect.publication.topic)
        ]

    script = [
        (0.0, ClientSubscribe(1, "a")),
        (5.0, CrashAgent(1)),
        (6.0, ClientPublish(0, "a", qos=1)),
        (7.0, RestartAgent(1)),
    ]
    slow = LinkOptions(observe_delay_ms=3_000.0)
    assert broken(script, links=slow) == set()
    monkeypatch.setattr(Node, "handle", leave_out)
    assert "guaranteed" in broken(script, links=slow)


def test_mutant_position_chain_per_filter(monkeypatch):
    """`previous` is the last position of the same filter, as with consecutive numbers per filter
    (the 77 % case): publications missed by `a/b` when `a/#` replaces it are never requested."""
    capture = Outbox.assign_position

    def per_filter(self, event, receivers, version):
        counts = self.__dict__.setdefault("counts", {})
        publication = capture(self, event, receivers, version)
        owner = self.__dict__["owner"]
        previous = tuple(
            (to, counts.get((to, owner(to, event.topic)), 0)) for to, _ in publication.receivers
        )
        for to, _ in previous:
            counts[to, owner(to, event.topic)] = publication.sequence
        self._uncommitted[-1] = structs.replace(publication, receivers=previous)
        return self._uncommitted[-1]

    init = Node.__init__

    def start(self, *args):
        init(self, *args)
        wanters = self._remote_interest.nodes_by_filter
        self._delivery.outbox.owner = lambda to, topic: next(
            name for name in reversed(wanters) if to in wanters[name]
        )

    monkeypatch.setattr(Outbox, "assign_position", per_filter)
    monkeypatch.setattr(Node, "__init__", start)
    assert "guaranteed" in broken(COVERED, links=LOSSY)
