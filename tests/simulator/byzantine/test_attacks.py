"""Compromised members: what they send, drop and alter, all from the seed."""

import pytest
from tests.simulator.worlds import SimulatedRun

from hansa.protocol.model import NodeId, Publication
from hansa.protocol.wire import codec
from hansa.protocol.wire.frames import Receipt, SequencedFrame, Update
from hansa.simulator.actions import ClientPublish, ClientSubscribe, PlayAttack
from hansa.simulator.byzantine.attacks import ATTACKS, RANDOM_ATTACKS, CompromisedMember
from hansa.simulator.byzantine.corpus import Corpus
from hansa.simulator.byzantine.random_frames import random_frames
from hansa.simulator.options import DiskOptions, LinkOptions

ATTACKER = 1
PERSISTENT = {"alter-payloads", "drop-all", "drop-half", "forward-again"}
"""Attacks that change how the member forwards and send nothing themselves."""


def attacked(*attacks: str, **options) -> SimulatedRun:
    """Run a line of three nodes with traffic at every QoS through the compromised one."""
    script = [
        *((0.0, ClientSubscribe(node, "a/#")) for node in range(3)),
        *((5.0, ClientPublish(node, "a/b", qos=qos)) for node in range(3) for qos in range(3)),
        *((6.0, PlayAttack(ATTACKER, name)) for name in attacks or ("forward-again",)),
        *((7.0, ClientPublish(node, "a/b", qos=1)) for node in (0, 2)),
    ]
    return SimulatedRun("line:3", script, disk=DiskOptions(), derive_ids=True, **options).run(8.0)


def member(run: SimulatedRun) -> CompromisedMember:
    found = run.world.compromised[ATTACKER]
    assert isinstance(found, CompromisedMember)
    return found


def sent(run: SimulatedRun) -> list[str]:
    """Return the frames that the member itself made, as text."""
    return [text for _, place, text in run.lines if place == ATTACKER and isinstance(text, str)]


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_sends_frames_or_changes_forwarding(name):
    assert bool(sent(attacked(name, certificates=True))) == (name not in PERSISTENT)


def test_random_attacks_are_attacks():
    assert set(RANDOM_ATTACKS) <= set(ATTACKS)


@pytest.mark.parametrize("name", ["forge-node-records", "random-frames", "drop-half"])
def test_same_seed_gives_the_same_run(name):
    prints = [attacked(name, seed=seed).world.transcript.fingerprint() for seed in (1, 1, 2)]
    assert prints[0] == prints[1] != prints[2]


def test_member_that_drops_everything_forwards_nothing():
    run = attacked("drop-all")
    assert {run.received(0)[-1], run.received(2)[-1]} <= set(range(9))
    assert {9, 10} <= set(run.received(ATTACKER))


def test_member_forwards_again():
    run = attacked("drop-all", "forward-again")
    assert 10 in run.received(0)
    assert 9 in run.received(2)


def test_altered_payload_keeps_its_length_and_number():
    run = attacked()
    one = CompromisedMember(run.world, run.world.sites[ATTACKER])
    one.is_altering = True
    copy = Publication(NodeId(7), 1, 1, 1, "a", b"12345678.")
    assert one.outgoing(copy) == Publication(NodeId(7), 1, 1, 1, "a", b"12345678!")
    plain = Publication(NodeId(7), 1, 1, 0, "a", b"12345678.")
    assert one.outgoing(plain) is plain
    own = Publication(one.id, 1, 1, 1, "a", b"12345678.")
    assert one.outgoing(own) is own


def test_dropped_frame_leaves_no_gap_on_datagram_links():
    run = attacked()
    one = CompromisedMember(run.world, run.world.sites[ATTACKER])
    one.dropped_share = 1.0
    receipt = Receipt(NodeId(7), NodeId(8), 1, 1, 1)
    assert one.outgoing(receipt) is None
    replaced = one.outgoing(SequencedFrame(5, receipt))
    assert isinstance(replaced, SequencedFrame)
    assert (replaced.sequence, replaced.frame == receipt) == (5, False)


def test_member_attacks_over_datagram_links():
    run = attacked("future-records", links=LinkOptions(loss=0.01))
    node = run.world.sites[0].node
    assert node is not None
    assert node.counters["incarnation ahead of the clock"] > 0


def test_member_does_nothing_while_its_node_is_stopped():
    run = attacked()
    run.world.stop_agent(run.world.sites[ATTACKER], notify_peers=True)
    before = len(sent(run))
    member(run).play("random-frames")
    assert len(sent(run)) == before


def test_member_knows_what_passed_its_links():
    corpus = member(attacked()).corpus
    assert (len(corpus.nodes), corpus.names, corpus.topics) == (3, ["a/#"], ["a/b"])
    assert len(corpus.positions) == 6


def test_corpus_keeps_the_newest_record_and_old_ones():
    corpus = Corpus()
    seen = member(attacked()).corpus
    record = seen.node_record(seen.nodes[0])
    assert record is not None
    older = Update((record.__class__(record.node, 0, 0, 0, record.key, "", (), 1.0, ()),))
    for frame in (Update((record,)), older, SequencedFrame(1, Update((record,)))):
        corpus.add(frame)
    assert corpus.node_record(record.node) == record
    assert list(corpus.records) == [record, older.records[0]]


def test_random_frames_are_of_many_types_and_most_are_well_formed():
    one = member(attacked())
    frames = list(random_frames(one, 500))
    assert len({type(frame) for frame in frames}) >= 15
    good = 0
    for frame in frames:
        try:
            good += codec.decode(codec.encode(frame)) == frame
        except ValueError:
            continue
    assert good > 400


def test_payloads_of_a_member_are_those_of_no_client():
    one = member(attacked())
    numbers = {int.from_bytes(one.new_payload()[:8], "big") for _ in range(100)}
    assert len(numbers) == 100
    assert min(numbers) > 1 << 62
