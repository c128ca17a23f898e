"""Checks of the status of all agents at the end of a run.

Nothing may be pending, no inbox may hold anything, and every alarm and gap must be explained by an
injected fault.
"""

import asyncio
import http.client
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from hansa.testbed.chaos.fault_effects import FaultEffects, LostState
from hansa.testbed.federation import LocalFederation, LocalNode

SETTLE_TIMEOUT_S = 30.0
"""Seconds until acknowledgements must have arrived, and restored agents begun a new epoch."""
POLL_S = 0.25

EXPECTED_ALARMS = frozenset(
    (
        "publications withheld",
        "message quarantined",
        "broker dropped messages",
        "broker quota exceeded",
        "broker session taken over",
        "broker session uncertain",
        "clock set back",
        "incarnation raised",
        "retained values not readable",
    )
)
"""Alarms about faults from outside that imply no loss. Publications that one of them delays are
still in the inbox."""

SESSION_LOSS_ALARMS = frozenset(("broker session lost", "broker state rolled back"))
STATE_LOSS_ALARMS = SESSION_LOSS_ALARMS | {
    "journal restored from copy",
    "journal damaged",
    "inbox damaged",
}
"""Alarms allowed at a node that lost state."""

StatusJson = Mapping[str, Any]


async def wait_until_settled(federation: LocalFederation, fault_effects: FaultEffects) -> list[str]:
    """Poll all agents until there is no problem; return the problems left after the timeout."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_TIMEOUT_S
    while True:
        statuses = [await asyncio.to_thread(_read_status, node) for node in federation.nodes]
        found = find_problems(statuses, fault_effects)
        if not found or loop.time() > deadline:
            return found
        await asyncio.sleep(POLL_S)


def _read_status(node: LocalNode) -> StatusJson | None:
    try:
        return node.status()
    except (OSError, http.client.HTTPException):
        return None


def find_problems(statuses: Sequence[StatusJson | None], fault_effects: FaultEffects) -> list[str]:
    """Return the problems in the statuses of all agents, by place; None: no answer."""
    losses = [*fault_effects.closed_losses, *fault_effects.open_losses.values()]
    places_with_loss = {loss.place for loss in losses}
    places_with_state_loss = {
        loss.place for loss in losses if loss.lost_state is LostState.STATE_DIRECTORY
    }
    places = {each["node"]: place for place, each in enumerate(statuses) if each is not None}

    def lost_its_state(node: str) -> bool:
        """Whether a node lost its state directory; it may have a new id since."""
        return (
            places[node] in places_with_state_loss
            if node in places
            else bool(places_with_state_loss)
        )

    found: list[str] = []
    for place, status in enumerate(statuses):
        if status is None:
            found.append(f"agent {place} does not answer")
            continue
        delivery = status["delivery"]
        gone = {node for node in delivery["pending"] if node not in places and lost_its_state(node)}
        gaps = [
            gap
            for gap in delivery["gaps"]
            if place not in places_with_state_loss and not lost_its_state(gap["origin"])
        ]
        wrong = (
            *_pending_problems(delivery, gone),
            *_alarm_problems(
                status["alarms"],
                _allowed_alarms(place in places_with_loss, place in places_with_state_loss),
            ),
            *(f"gap {each['first']} to {each['last']} of {each['origin']}" for each in gaps),
        )
        found += [f"agent {place}: {text}" for text in wrong]
    return found


def _pending_problems(delivery: StatusJson, gone: Set[str]) -> Iterator[str]:
    for node, count in delivery["pending"].items():
        if count and node not in gone:
            yield f"{count} pending for {node}"
    for name in ("inbox", "inbox_waiting"):
        if delivery[name]:
            yield f"{delivery[name]} in {name}"


def _allowed_alarms(has_loss: bool, has_state_loss: bool) -> Set[str]:
    """Return the allowed alarms; gaps are checked one by one."""
    if has_state_loss:
        return EXPECTED_ALARMS | STATE_LOSS_ALARMS | {"delivery gap"}
    return EXPECTED_ALARMS | {"delivery gap"} | (SESSION_LOSS_ALARMS if has_loss else frozenset())


def _alarm_problems(alarms: Mapping[str, str], allowed: Set[str]) -> Iterator[str]:
    for name, text in alarms.items():
        if name not in allowed:
            yield f"alarm {name}: {text}"
