"""Hooks: only those that are overridden are called."""

from hansa.simulator.world.hooks import Watcher, Watchers


class Curious(Watcher):
    def __init__(self):
        self.seen = []

    def disturbed(self, what, fault, places):
        self.seen.append((what, fault, places))


def test_a_watcher_is_called_for_what_it_overrides_and_for_nothing_else():
    curious = Curious()
    watchers = Watchers([curious, Watcher()])
    assert watchers.changed == watchers.told == []
    for call in watchers.disturbed:
        call("crash 3", True, (3,))
    assert curious.seen == [("crash 3", True, (3,))]
