"""The whole output of a node: commands and notifications."""

import inspect
from typing import get_args

import msgspec
import pytest

from hansa.protocol import effects
from hansa.protocol.effects import Command, Effect, Ignored, Notification, SubscribeAtBroker

DEFINED = [
    item
    for _, item in inspect.getmembers(effects, inspect.isclass)
    if issubclass(item, msgspec.Struct) and item.__module__ == effects.__name__
]


def test_every_effect_is_in_the_union_and_nothing_else():
    assert set(get_args(Effect)) == set(DEFINED)


def test_effect_is_either_a_command_or_a_notification():
    commands, notifications = set(get_args(Command)), set(get_args(Notification))
    assert commands | notifications == set(DEFINED)
    assert commands & notifications == set()


def test_effects_are_values():
    assert SubscribeAtBroker(("a", "b")) == SubscribeAtBroker(("a", "b"))
    with pytest.raises(AttributeError):
        Ignored("nonsense").reason = "sense"  # type: ignore[misc]
