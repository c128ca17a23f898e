"""What an agent writes to its log, and shows of it for a while."""

from hansa.agent.chronicle import REFUSAL_S, REFUSALS_MAX, Chronicle
from hansa.protocol.effects import LinkRefused, NeighbourUp
from hansa.protocol.vocabulary import LinkId, NodeId


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def started(clock: Clock | None = None) -> Chronicle:
    return Chronicle(lambda node: "", clock or Clock())


def refuse(written: Chronicle, *reasons: str) -> None:
    for reason in reasons:
        written.news(LinkRefused(LinkId(1), reason))


def test_a_refusal_is_logged_once_and_shown_for_a_while(caplog):
    clock = Clock()
    written = started(clock)
    refuse(written, "a", "b", "a")
    assert [record.message for record in caplog.records] == [
        "link refused reason='a'",
        "link refused reason='b'",
    ]
    assert written.refusals() == ["b", "a"]
    clock.now += REFUSAL_S
    assert written.refusals() == []


def test_a_new_neighbour_ends_what_was_in_the_way():
    written = started()
    refuse(written, "a")
    written.news(NeighbourUp(NodeId(2), LinkId(1)))
    assert written.refusals() == []


def test_only_some_refusals_are_kept():
    written = started()
    reasons = [str(number) for number in range(REFUSALS_MAX + 1)]
    refuse(written, *reasons)
    assert written.refusals() == reasons[1:]
