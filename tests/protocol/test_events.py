"""The whole input of a node."""

import inspect
from typing import get_args

import msgspec
import pytest

from hansa.protocol import events
from hansa.protocol.events import ClientPublished, Event, InterestChanged, LinkClosed, LinkOpened
from hansa.protocol.model import LinkId

DEFINED = [
    item
    for _, item in inspect.getmembers(events, inspect.isclass)
    if issubclass(item, msgspec.Struct) and item.__module__ == events.__name__
]


def test_every_event_is_in_the_union_and_nothing_else():
    assert set(get_args(Event)) == set(DEFINED)


def test_events_are_values():
    assert LinkOpened(LinkId(1), True) == LinkOpened(LinkId(1), True)
    with pytest.raises(AttributeError):
        ClientPublished("t", b"").topic = "u"  # type: ignore[misc]


def test_events_have_defaults():
    assert LinkOpened(LinkId(1), dialled=True).ordered
    assert LinkClosed(LinkId(1)).reason == "connection closed"
    assert InterestChanged() == InterestChanged(added=(), removed=())
    assert ClientPublished("t", b"") == ClientPublished(
        "t", b"", qos=0, retain=False, properties=b""
    )
