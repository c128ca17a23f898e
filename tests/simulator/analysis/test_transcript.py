"""Lines for people, and one hash of it all."""

from hansa.protocol.effects import CoreElected, MemberJoined
from hansa.protocol.model import NodeId
from hansa.simulator.actions import Crash, Heal
from hansa.simulator.analysis.transcript import Transcript, line


def test_a_line_has_time_place_and_what_happened():
    news = CoreElected("a/#", NodeId(1))
    assert line(0.01234, 3, repr(news)) == "    0.0123 n3 CoreElected(group='a/#', core=1)\n"
    assert line(12.5, None, repr(Crash(3))) == "   12.5000 -- Crash(node=3)\n"


def test_a_listener_is_told_what_becomes_a_line():
    told = []
    transcript = Transcript(lambda *what: told.append(what))
    transcript.note(1.0, 2, MemberJoined(NodeId(7)))
    transcript.note(2.0, None, Heal())
    assert told == [(1.0, 2, MemberJoined(NodeId(7))), (2.0, None, Heal())]


def test_the_hash_covers_news_and_frames_and_their_order():
    def fingerprint(*notes):
        transcript = Transcript()
        for note in notes:
            if isinstance(note, tuple):
                transcript.frame(*note)
            else:
                transcript.note(1.0, 2, note)
        return transcript.fingerprint()

    frame = (1.0, (0, 1), 10, 99)
    assert fingerprint(frame, Heal()) == fingerprint(frame, Heal())
    others = [
        fingerprint(Heal(), frame),
        fingerprint(frame),
        fingerprint((1.0, (0, 1), 10, 98), Heal()),
        fingerprint((1.5, (0, 1), 10, 99), Heal()),
        fingerprint(frame, Crash(1)),
        fingerprint(frame, CoreElected("a", NodeId(1))),
    ]
    assert fingerprint(frame, Heal()) not in others
    assert len(set(others)) == len(others)


def test_long_runs_are_hashed_piece_by_piece():
    transcript, whole = Transcript(), Transcript()
    for number in range(10_000):
        transcript.frame(float(number), (0, 1), 10, number)
        whole.frame(float(number), (0, 1), 10, number)
    assert transcript.fingerprint() == whole.fingerprint()


def test_the_fast_text_is_the_repr():
    told = []
    for what in (MemberJoined(NodeId(7)), CoreElected("a", NodeId(1)), Heal()):
        transcript = Transcript(lambda now, place, seen: told.append(repr(seen)))
        transcript.note(0.0, 0, what)
        expected = Transcript()
        expected.note(0.0, 0, told[-1])
        assert transcript.fingerprint() == expected.fingerprint()
