"""A clock that is set back is reported once, and again when it has caught up."""

import pytest

from hansa.agent.clock_monitor import ClockMonitor

SECOND = 1_000_000_000


class Clocks:
    """A wall clock and a monotonic clock."""

    def __init__(self, behind_s: float = 0.0) -> None:
        self.wall = 1_000 * SECOND
        self.steady = 5 * SECOND
        self.reported: list[str] = []
        self.read: list[int] = []
        self.watch = ClockMonitor(
            behind_s,
            self.reported.append,
            self.read.append,
            wall_ns=lambda: self.wall,
            steady_ns=lambda: self.steady,
        )

    def look(self, wall_s: float, steady_s: float) -> str:
        """Advance both clocks; return the last report."""
        self.wall += round(wall_s * SECOND)
        self.steady += round(steady_s * SECOND)
        self.watch.check()
        return self.reported[-1]


@pytest.mark.parametrize(("wall_s", "steady_s"), [(1, 1), (100, 1), (0.5, 1)])
def test_clock_that_advances_jumps_ahead_or_lags_slightly_is_accepted(wall_s, steady_s):
    assert Clocks().look(wall_s, steady_s) == ""


def test_clock_set_back_is_reported_once_until_it_has_caught_up():
    clocks = Clocks()
    text = "it was set back by 61 s: what has an age stays for longer"
    assert clocks.look(-60, 1) == text
    assert clocks.look(1, 1) == text
    assert len(clocks.reported) == 1
    assert clocks.look(62, 1) == ""


def test_clock_set_back_once_more_is_reported_again():
    clocks = Clocks()
    assert clocks.look(-60, 1).startswith("it was set back by 61 s")
    assert clocks.look(31, 1).startswith("it was set back by 61 s")
    assert clocks.look(-19, 1).startswith("it was set back by 51 s")
    assert len(clocks.reported) == 2


def test_clock_behind_an_earlier_incarnation_is_reported_at_start():
    assert Clocks(behind_s=30).look(0, 0).startswith("it was set back by 30 s")


def test_jump_back_is_measured_from_earlier_jump_ahead():
    clocks = Clocks()
    assert clocks.look(101, 1) == ""
    assert clocks.look(-50, 1).startswith("it was set back by 51 s")


def test_clock_is_read_again_after_drift_from_monotonic_clock():
    clocks = Clocks()
    for wall_s, steady_s in ((1, 1), (61, 1), (1, 1), (-9, 1)):
        clocks.look(wall_s, steady_s)
    assert clocks.read == [1_062_000, 1_054_000]
