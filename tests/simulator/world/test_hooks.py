"""Hooks: only overridden ones are called."""

from hansa.simulator import checkers
from hansa.simulator.world.hooks import HookCallbacks, Hooks


class Curious(Hooks):
    def __init__(self):
        self.seen = []

    def on_disturbance(self, what, fault, places):
        self.seen.append((what, fault, places))


def test_only_overridden_hooks_are_called():
    curious = Curious()
    watchers = HookCallbacks([curious, Hooks()])
    assert watchers.on_state_changed == watchers.on_notification == []
    for call in watchers.on_disturbance:
        call("crash 3", True, (3,))
    assert curious.seen == [("crash 3", True, (3,))]


def test_every_checker_overrides_a_hook():
    """A renamed hook must not silence a checker: its old method would never be called."""
    hooks = [name for name in vars(Hooks) if name.startswith("on_")]
    for name in checkers.__all__:
        checker = getattr(checkers, name)
        if isinstance(checker, type) and checker is not checkers.Checker:
            assert any(getattr(checker, hook) is not getattr(Hooks, hook) for hook in hooks), name
