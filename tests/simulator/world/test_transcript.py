"""Readable lines, and one hash of everything."""

from hansa.protocol.effects import CoreElected, NodeReachable
from hansa.protocol.model import NodeId
from hansa.simulator.actions import CrashAgent, HealAll
from hansa.simulator.world.transcript import Transcript, format_line


def test_line_has_time_place_and_event():
    effect = CoreElected("a/#", NodeId(1))
    assert (
        format_line(0.01234, 3, repr(effect)) == "    0.0123 n3 CoreElected(group='a/#', core=1)\n"
    )
    assert format_line(12.5, None, repr(CrashAgent(3))) == "   12.5000 -- CrashAgent(node=3)\n"


def test_listener_gets_every_line():
    lines = []
    transcript = Transcript(lambda *what: lines.append(what))
    transcript.add_line(1.0, 2, NodeReachable(NodeId(7)))
    transcript.add_line(2.0, None, HealAll())
    assert lines == [(1.0, 2, NodeReachable(NodeId(7))), (2.0, None, HealAll())]


def test_hash_covers_lines_frames_and_order():
    def fingerprint(*notes):
        transcript = Transcript()
        for note in notes:
            if isinstance(note, tuple):
                transcript.add_frame(*note)
            else:
                transcript.add_line(1.0, 2, note)
        return transcript.fingerprint()

    frame = (1.0, (0, 1), 10, 99)
    assert fingerprint(frame, HealAll()) == fingerprint(frame, HealAll())
    others = [
        fingerprint(HealAll(), frame),
        fingerprint(frame),
        fingerprint((1.0, (0, 1), 10, 98), HealAll()),
        fingerprint((1.5, (0, 1), 10, 99), HealAll()),
        fingerprint(frame, CrashAgent(1)),
        fingerprint(frame, CoreElected("a", NodeId(1))),
    ]
    assert fingerprint(frame, HealAll()) not in others
    assert len(set(others)) == len(others)


def test_long_runs_are_hashed_in_pieces():
    transcript, whole = Transcript(), Transcript()
    for number in range(10_000):
        transcript.add_frame(float(number), (0, 1), 10, number)
        whole.add_frame(float(number), (0, 1), 10, number)
    assert transcript.fingerprint() == whole.fingerprint()


def test_fast_text_equals_repr():
    lines = []
    for what in (NodeReachable(NodeId(7)), CoreElected("a", NodeId(1)), HealAll()):
        transcript = Transcript(lambda now, place, seen: lines.append(repr(seen)))
        transcript.add_line(0.0, 0, what)
        expected = Transcript()
        expected.add_line(0.0, 0, lines[-1])
        assert transcript.fingerprint() == expected.fingerprint()
