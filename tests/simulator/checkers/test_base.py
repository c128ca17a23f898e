"""Violation texts."""

from tests.simulator.checkers.stubs import idle_world

from hansa.simulator.checkers import Checker
from hansa.simulator.checkers.base import VIOLATIONS_MAX


def test_violation_has_text_time_and_seed():
    violations: list[str] = []
    Checker(idle_world(), violations).report_violation("n3 is upset", "peace")
    assert violations == ["peace: n3 is upset (0.0000 s, seed 42)"]


def test_violations_are_bounded():
    violations: list[str] = []
    checker = Checker(idle_world(), violations)
    for _ in range(2 * VIOLATIONS_MAX):
        checker.report_violation("again")
    assert len(violations) == VIOLATIONS_MAX
