"""Agents crash after every effect of their delivery cores, alone and in pairs.

The scripts are short, so that every crash can be played: either agent, each effect, with none, some
or all of the unsynced records surviving; in a pair the second crash follows any effect of either
agent after the first one. The default run plays a sample, `--long` plays all.
"""

import gc
import random
from collections import deque

import pytest
from tests.simulator.crashes import Crash, CrashRun, CrashScript

from hansa.delivery.capture import Capture
from hansa.delivery.dedup.redelivery import RedeliveryFilter, content_digest
from hansa.delivery.effects import SendHandshakePackets
from hansa.simulator.actions import (
    BackUpState,
    ClientPublish,
    FillDisk,
    RefuseAgent,
    RollBackState,
)

SINGLE_SAMPLE = 16
PAIR_SAMPLE = 16
"""Cases of each script in the default run."""


def publish(node=0, at=0.0, count=3, **options):
    """Half a millisecond apart, as long as a sync: some are captured together, some are not."""
    return at, ClientPublish(node, "a/b", count=count, interval_s=0.0005, **options)


BOTH_LEVELS = (publish(qos=1), publish(qos=2))
OVERLAPPING = ((1, "a/b"), (1, "a/#"), (1, "+/b"))

SCRIPTS = (
    CrashScript("qos-1", [publish(qos=1, count=5)]),
    CrashScript("qos-2", [publish(qos=2, count=5)]),
    CrashScript("both-levels", BOTH_LEVELS),
    CrashScript("identical-qos-1", [publish(qos=1, is_repeated=True)]),
    CrashScript("identical-qos-2", [publish(qos=2, is_repeated=True)]),
    CrashScript("overlapping-qos-1", [publish(qos=1)], OVERLAPPING),
    CrashScript("overlapping-qos-2", [publish(qos=2)], OVERLAPPING),
    CrashScript(
        "two-origins", [publish(qos=2), publish(1, qos=1)], subscriptions=((0, "a/b"), (1, "a/b"))
    ),
    CrashScript(
        "two-receivers",
        [publish(qos=2, count=2), publish(1, qos=1, count=2)],
        subscriptions=((1, "a/b"), (2, "a/#")),
        topology="line:3",
    ),
    CrashScript("retained", [publish(qos=1, retain=True), publish(qos=2, retain=True)]),
    CrashScript(
        "origin-disconnected",
        [*BOTH_LEVELS, (0.0007, RefuseAgent(0, 0.003))],
        disconnection_count=1,
    ),
    CrashScript(
        "receiver-disconnected",
        [*BOTH_LEVELS, (0.004, RefuseAgent(1, 0.003))],
        disconnection_count=1,
    ),
    CrashScript("origin-disk-full", [(0.0, FillDisk(0, 0.05)), *BOTH_LEVELS], length_s=1.5),
    CrashScript("receiver-disk-full", [(0.0, FillDisk(1, 0.05)), *BOTH_LEVELS], length_s=1.5),
    CrashScript(
        "rollover",
        [
            (0.0, BackUpState(0)),
            publish(qos=2),
            (0.05, RollBackState(0)),
            publish(at=0.051, qos=2),
            publish(at=0.051, qos=1),
        ],
        certain_from_s=0.051,
    ),
    CrashScript("origin-session-lost", BOTH_LEVELS, session_lost=(0.0012, 0)),
    CrashScript("receiver-session-lost", BOTH_LEVELS, session_lost=(0.004, 1)),
)
EVERY_SCRIPT = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


@pytest.fixture(autouse=True)
def _short_collections():
    """A run starts with a garbage collection: spare it the objects of all other tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def play(script, *crashes):
    """Play a case; return the crashes that could follow."""
    run = CrashRun(script, crashes)
    assert (run.play(), crashes) == ([], crashes)
    return run.next_crashes


@EVERY_SCRIPT
def test_sampled_crashes_keep_the_guarantees(script):
    rng = random.Random(script.name)
    singles = play(script)
    for crash in rng.sample(singles, SINGLE_SAMPLE):
        play(script, crash)
    for _ in range(PAIR_SAMPLE):
        first = rng.choice(singles)
        followers = play(script, first)
        if followers:
            play(script, first, rng.choice(followers))


@pytest.mark.long
@pytest.mark.timeout(3600)
@EVERY_SCRIPT
def test_every_crash_and_every_pair_keeps_the_guarantees(script):
    for first in play(script):
        for second in play(script, first):
            play(script, first, second)


def test_crash_points_include_every_kind_of_survival():
    crashes = play(SCRIPTS[1])
    assert {crash.place for crash in crashes} == {0, 1}
    assert {crash.surviving_fraction for crash in crashes} == {0.0, 0.5, 1.0}
    assert [crash.effect for crash in crashes if crash == Crash(0, crash.effect, 0.0)] == [
        *range(1, 1 + max(crash.effect for crash in crashes if crash.place == 0))
    ]


def test_qos_1_copy_of_another_filter_may_be_captured_again_by_the_next_incarnation():
    """The broker has the acknowledgement of the first copy only. It could also have sent a new
    publication with equal content, and at QoS 1 a duplicate is better than a loss."""
    (script,) = (each for each in SCRIPTS if each.name == "overlapping-qos-1")
    run = CrashRun(script, (Crash(0, 4, 1.0), Crash(0, 4, 1.0)))
    assert (run.play(), run.repeat_count) == ([], 1)


# ---------------------------------------------------------------- known errors are found


def errors_of(script):
    """Yield what is wrong after any single crash."""
    for crash in play(script):
        yield from CrashRun(script, [crash]).play()


def test_acknowledgement_before_the_sync_is_found(monkeypatch):
    """The origin answers at once, and the crash loses the record."""

    def send_acks(capture):
        acks, capture._pending_acks = list(capture._pending_acks), deque()  # noqa: SLF001
        if acks:
            batch = [ack.step for ack in acks]
            capture._context.effects.append(SendHandshakePackets(batch))  # noqa: SLF001

    monkeypatch.setattr(Capture, "_send_due_acks", send_acks)
    assert any("did not reach n1" in error for error in errors_of(SCRIPTS[0]))


@pytest.mark.parametrize("name", ["qos-2", "identical-qos-2"])
def test_unrecognised_redeliveries_are_found(monkeypatch, name):
    monkeypatch.setattr(RedeliveryFilter, "match_redelivery", lambda *_: None)
    (script,) = (each for each in SCRIPTS if each.name == name)
    assert any("captured a publication twice" in error for error in errors_of(script))


def test_identical_publication_taken_for_a_redelivery_is_found(monkeypatch):
    """If the packet id does not count, equal content is taken for a redelivery, and lost."""

    def match_content(self, publish):
        same = [each for each in self.candidates() if each.digest == content_digest(publish)]
        return match(self, publish) or (same[0] if same and publish.dup else None)

    match = RedeliveryFilter.match_redelivery
    monkeypatch.setattr(RedeliveryFilter, "match_redelivery", match_content)
    assert any("did not reach n1" in error for error in errors_of(SCRIPTS[3]))
