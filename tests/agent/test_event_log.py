"""The log lines of an agent, and the refusals it shows for a while."""

import dataclasses
import logging
import re
import typing

import msgspec
import pytest

from hansa.agent.event_log import REFUSAL_SHOWN_S, REFUSALS_MAX, EventLog
from hansa.agent.links.link import Address
from hansa.observers import base as observer_base
from hansa.protocol import effects
from hansa.protocol.effects import LinkRefused, NeighbourUp
from hansa.protocol.model import LinkId, NodeId, Publication
from hansa.protocol.wire.frames import Goodbye

OBJECT = re.compile(r"[A-Za-z_]\w*\((?:\w+=|\))|<\w+ ")
"""The repr of an object: `Name(field=`, `Name()` or `<Name `."""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def started(clock: Clock | None = None) -> EventLog:
    return EventLog(lambda node: "", clock or Clock())


def refuse(written: EventLog, *reasons: str) -> None:
    for reason in reasons:
        written.log_notification(LinkRefused(LinkId(1), reason))


def test_refusal_is_logged_once_and_shown_until_it_expires(caplog):
    clock = Clock()
    written = started(clock)
    refuse(written, "a", "b", "a")
    assert [record.message for record in caplog.records] == [
        "link refused reason='a'",
        "link refused reason='b'",
    ]
    assert written.recent_refusals() == ["b", "a"]
    clock.now += REFUSAL_SHOWN_S
    assert written.recent_refusals() == []


def test_new_neighbour_clears_logged_refusals():
    written = started()
    refuse(written, "a")
    written.log_notification(NeighbourUp(NodeId(2), LinkId(1)))
    assert written.recent_refusals() == []


def test_kept_refusals_are_bounded():
    written = started()
    reasons = [str(number) for number in range(REFUSALS_MAX + 1)]
    refuse(written, *reasons)
    assert written.recent_refusals() == reasons[1:]


def test_neighbour_that_is_not_reached_is_shown_until_the_attempts_end():
    clock = Clock()
    written = started(clock)
    written.log_dial_failed(Address("south", 10500), "timed out")
    written.log_dial_failed(Address("south", 10500), "Connection refused")
    assert written.not_reached() == {"south:10500": "Connection refused"}
    clock.now += REFUSAL_SHOWN_S
    assert written.not_reached() == {}
    written.log_dial_failed(Address("south", 10500), "Connection refused")
    written.log_notification(NeighbourUp(NodeId(2), LinkId(1)))
    assert written.not_reached() == {}


def test_shown_neighbours_that_are_not_reached_are_bounded():
    written = started()
    for port in range(REFUSALS_MAX + 1):
        written.log_dial_failed(Address("south", port), "Connection refused")
    assert [*written.not_reached()] == [f"south:{port}" for port in range(1, REFUSALS_MAX + 1)]


# ---------------------------------------------------------------- every kind of line

PUBLICATION = Publication(NodeId(2), 1, 3, 1, "t", b"payload")
SAMPLES: dict[object, object] = {int: 7, str: "a\nb", bool: True, float: 0.5}
TUPLES = {"parents": (2, 3), "filters": ("a/#", "b"), "topics": ("a", "b")}


def sample(kind: type) -> object:
    """Return an effect or a finding of a type with every field set."""
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    else:
        names = [field.name for field in msgspec.structs.fields(kind)]
    given = {"frame": Goodbye("x"), "publication": PUBLICATION, **TUPLES}
    return kind(**{name: given.get(name, SAMPLES.get(hints[name], 7)) for name in names})


KINDS = [
    *typing.get_args(effects.Command),
    *typing.get_args(effects.Notification),
    *typing.get_args(observer_base.ObserverFinding),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_line_contains_python_repr(kind, caplog):
    caplog.set_level(logging.DEBUG)
    written = EventLog(lambda node: f"name-{node}", Clock())
    happened = sample(kind)
    if kind in typing.get_args(observer_base.ObserverFinding):
        written.log_finding(happened)  # type: ignore[arg-type]
    else:
        written.log_notification(happened)  # type: ignore[arg-type]
    (line,) = caplog.messages or [""]
    assert line or kind is observer_base.BrokerDroppedPublications  # which is an alarm
    assert not OBJECT.search(line), line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("happened", "line"),
    [
        (
            effects.CoreElected("plant/#", NodeId(2)),
            "core elected group='plant/#' core=0000000000000002 core_name='name-2'",
        ),
        (
            effects.ParentsChanged(NodeId(2), 1, 4, 3, (NodeId(5), NodeId(6))),
            "parents changed core=0000000000000002 core_name='name-2' incarnation=1 sequence=4 "
            "distance=3 parents=0000000000000005,0000000000000006",
        ),
        (effects.Deliver(PUBLICATION), "deliver"),
        (
            observer_base.SubscriptionCountMismatch("subscriptions", 5, 18),
            "observer differs from the broker's count kind='subscriptions' known=5 counted=18",
        ),
        (
            observer_base.LineNotUnderstood("x" * 100, "no client"),
            f"observer: line not understood line='{'x' * 80}'… reason='no client'",
        ),
    ],
)
def test_events_are_logged_as_readable_lines(happened, line, caplog):
    caplog.set_level(logging.DEBUG)
    written = EventLog(lambda node: f"name-{node}", Clock())
    if isinstance(happened, typing.get_args(observer_base.ObserverFinding)):
        written.log_finding(happened)
    else:
        written.log_notification(happened)
    assert caplog.messages == [line]
