"""All schedules of one QoS 2 publication through the borders of two areas, with crashes.

    origin --> first or second border of its area --> border of the other area --> receiver

A station sends a record of its journal again until the next station acknowledges it. The next
station recognises a record that it has accepted. Copies and acknowledgements may get lost, stations
may crash at any moment and restart; journals survive. `explore` visits every reachable state and
returns how often the receiver may get the publication. The rules for a border are the subject.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

ORIGIN, FIRST, SECOND, REMOTE, RECEIVER = "origin", "first", "second", "remote", "receiver"
BORDERS = (FIRST, SECOND, REMOTE)


class HandOver(Enum):
    """How a border records that it has accepted a publication, and that it must forward it."""

    ONE_RECORD = "one journal record for both"
    ACCEPT_FIRST = "accepted first, forwarded by a second record"
    FORWARD_FIRST = "forwarded first, accepted by a second record"


class Record(NamedTuple):
    """A publication in the outbox of a station, for the next one."""

    station: str
    position: int
    next: str


class State(NamedTuple):
    outbox: frozenset[Record]
    """Durable: records that the next station has not acknowledged."""
    positions: tuple[tuple[str, int], ...]
    """Durable: the last position of each station's journal."""
    accepted: frozenset[tuple[str, Record]]
    """Durable: what each station has accepted."""
    half_done: frozenset[tuple[str, Record]]
    """In memory: hand-overs whose first record is durable."""
    down: frozenset[str]
    delivered: int
    crashes_left: int


def explore(hand_over: HandOver, chooses_again: bool, crashes: int = 2) -> set[int]:
    """Return the numbers of deliveries in which a schedule may end. With `chooses_again`, the
    origin gives a record to the other border while the chosen one is down."""
    first = Record(ORIGIN, 1, FIRST)
    start = State(
        frozenset([first]), ((ORIGIN, 1),), frozenset(), frozenset(), frozenset(), 0, crashes
    )
    seen, waiting, ends = {start}, [start], set[int]()
    while waiting:
        state = waiting.pop()
        if not (state.outbox or state.half_done or state.down):
            ends.add(state.delivered)
        for after in _next_states(state, hand_over, chooses_again):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return ends


def _next_states(state: State, hand_over: HandOver, chooses_again: bool) -> Iterator[State]:
    for record in state.outbox:
        if record.station not in state.down and record.next not in state.down:
            yield _arrive(state, record, hand_over)
        if chooses_again and record.station == ORIGIN and record.next in state.down:
            other = record._replace(next=SECOND if record.next == FIRST else FIRST)
            yield state._replace(outbox=state.outbox - {record} | {other})
    for station, record in state.half_done:
        rest = state._replace(half_done=state.half_done - {(station, record)})
        if hand_over is HandOver.ACCEPT_FIRST:
            yield _forward(rest, station)
        else:
            yield _accept(rest, station, record)
    for station in state.down:
        yield state._replace(down=state.down - {station})
    if state.crashes_left:
        for station in BORDERS:
            if station not in state.down:
                yield state._replace(
                    down=state.down | {station},
                    half_done=frozenset(e for e in state.half_done if e[0] != station),
                    crashes_left=state.crashes_left - 1,
                )


def _arrive(state: State, record: Record, hand_over: HandOver) -> State:
    """A copy arrives. A known one is acknowledged; the acknowledgement of a new one counts as lost,
    because the next copy gets it."""
    station = record.next
    if (station, record) in state.half_done:
        return state
    if (station, record) in state.accepted:
        return state._replace(outbox=state.outbox - {record})
    if station == RECEIVER:
        return _accept(state, station, record)._replace(delivered=state.delivered + 1)
    if hand_over is HandOver.ONE_RECORD:
        return _forward(_accept(state, station, record), station)
    half_done = state.half_done | {(station, record)}
    if hand_over is HandOver.ACCEPT_FIRST:
        return _accept(state, station, record)._replace(half_done=half_done)
    return _forward(state, station)._replace(half_done=half_done)


def _accept(state: State, station: str, record: Record) -> State:
    return state._replace(accepted=state.accepted | {(station, record)})


def _forward(state: State, station: str) -> State:
    positions = dict(state.positions)
    positions[station] = positions.get(station, 0) + 1
    after = RECEIVER if station == REMOTE else REMOTE
    record = Record(station, positions[station], after)
    return state._replace(
        outbox=state.outbox | {record}, positions=tuple(sorted(positions.items()))
    )
