"""When a misbehaving node is quarantined, and for how long."""

from hypothesis import given
from hypothesis import strategies as st

from hansa.agent.links import strikes
from hansa.agent.links.strikes import (
    FORGIVEN_AFTER_S,
    QUARANTINE_MAX_S,
    QUARANTINE_MIN_S,
    STRIKE_WINDOW_S,
    STRIKES_MAX,
    SavedOffender,
    StrikeList,
)
from hansa.protocol.model import NodeId

NODE, OTHER = NodeId(1), NodeId(2)


def quarantine(listed: StrikeList, now: float, node: NodeId = NODE) -> float:
    """Strike until a quarantine starts; return its duration."""
    found = [listed.strike(node, "forged", now) for _ in range(STRIKES_MAX)]
    assert found[:-1] == [0.0] * (STRIKES_MAX - 1)
    return found[-1]


def test_third_strike_within_a_minute_starts_a_quarantine():
    listed = StrikeList()
    assert [listed.strike(NODE, "forged", at) for at in (100.0, 130.0, 160.0)] == [0.0, 0.0, 1.0]
    assert listed.remaining_s(NODE, 160.5) == 0.5
    assert listed.remaining_s(NODE, 161.0) == 0.0
    assert listed.remaining_s(OTHER, 160.5) == 0.0
    assert [*listed.quarantined(160.5)] == [NODE] and not listed.quarantined(161.0)


def test_strikes_that_are_further_apart_do_not():
    listed = StrikeList()
    apart = STRIKE_WINDOW_S / 2 + 1
    assert not any(listed.strike(NODE, "forged", 100 + number * apart) for number in range(10))


def test_each_quarantine_takes_twice_as_long_up_to_a_bound():
    listed, now, found = StrikeList(), 100.0, []
    for _ in range(12):
        found.append(quarantine(listed, now))
        now += found[-1]
    assert found == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]


def test_strikes_during_a_quarantine_do_not_count():
    listed = StrikeList()
    quarantine(listed, 100.0)
    assert not any(listed.strike(NODE, "late", 100.5) for _ in range(5))
    assert quarantine(listed, 101.0) == 2.0


def test_day_without_strikes_is_forgiven():
    listed = StrikeList()
    quarantine(listed, 100.0)
    assert quarantine(listed, 200.0) == 2.0
    assert quarantine(listed, 203.0 + FORGIVEN_AFTER_S) == QUARANTINE_MIN_S


def test_released_node_starts_again():
    listed = StrikeList()
    quarantine(listed, 100.0)
    assert listed.release(NODE) and not listed.release(NODE)
    assert listed.remaining_s(NODE, 100.0) == 0.0
    assert quarantine(listed, 100.5) == QUARANTINE_MIN_S


def test_remembered_nodes_are_bounded(monkeypatch):
    monkeypatch.setattr(strikes, "OFFENDERS_MAX", 3)
    listed = StrikeList()
    for node in range(1, 6):
        quarantine(listed, 100.0, NodeId(node))
    assert [*listed.quarantined(100.0)] == [3, 4, 5]


def test_long_reason_is_cut():
    listed = StrikeList()
    for _ in range(STRIKES_MAX):
        listed.strike(NODE, "x" * 10_000, 100.0)
    assert len(listed.quarantined(100.0)[NODE].reason) == strikes.REASON_CHARS_MAX


def test_restart_keeps_quarantine_and_back_off():
    before, after = StrikeList(), StrikeList()
    quarantine(before, 100.0)
    quarantine(before, 101.0)
    saved = before.save(101.5, wall=5_000.0)
    assert saved == [SavedOffender(NODE, "forged", 2.0, 5_001.5)]
    after.restore(saved, 7.0, wall=5_000.5)
    assert after.remaining_s(NODE, 7.0) == 1.0
    assert quarantine(after, 8.0) == 4.0


def test_clock_that_was_set_back_does_not_prolong_a_quarantine():
    after = StrikeList()
    after.restore([SavedOffender(NODE, "forged", 8.0, 5_000.0)], 7.0, wall=1.0)
    assert after.remaining_s(NODE, 7.0) == 8.0


def test_invalid_saved_durations_are_bounded():
    after = StrikeList()
    after.restore([SavedOffender(NODE, "", 1e9, 1e9), SavedOffender(OTHER, "", -5, 1e9)], 0.0, 0.0)
    assert after.remaining_s(NODE, 0.0) == QUARANTINE_MAX_S
    assert after.remaining_s(OTHER, 0.0) == QUARANTINE_MIN_S


def test_nodes_with_strikes_only_are_not_saved():
    listed = StrikeList()
    listed.strike(NODE, "forged", 100.0)
    assert listed.save(100.0, 0.0) == []


@given(st.lists(st.tuples(st.sampled_from([NODE, OTHER]), st.floats(0, 100)), max_size=200))
def test_invariants_of_any_history(steps):
    """A quarantine needs three strikes outside of one, and lasts 1 s to 10 min."""
    listed, now, counted = StrikeList(), 1.0, {NODE: 0, OTHER: 0}
    for node, elapsed in steps:
        now += elapsed
        was = listed.remaining_s(node, now)
        duration = listed.strike(node, "forged", now)
        if was:
            assert not duration and listed.remaining_s(node, now) == was
            continue
        counted[node] += 1
        if duration:
            assert counted[node] >= STRIKES_MAX
            assert QUARANTINE_MIN_S <= duration <= QUARANTINE_MAX_S
            assert abs(listed.remaining_s(node, now) - duration) < 1e-6
            counted[node] = 0
