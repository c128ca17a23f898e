"""What agents say of themselves when all is over: they owe nothing, nothing waits, and they raise
no alarm but what was done to them explains. A pure judgement over their pages, and how they are
asked.
"""

import asyncio
import http.client
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from hansa.testbed.chaos.fault_effects import FaultEffects, LostState
from hansa.testbed.federation import LocalFederation, LocalNode

SETTLE_TIMEOUT_S = 30.0
"""Seconds until all receipts are where they belong; an old copy begins a new epoch before that."""
POLL_S = 0.25

EXPECTED_ALARMS = frozenset(
    (
        "message quarantined",
        "broker dropped messages",
        "broker quota",
        "broker session taken over",
        "broker session uncertain",
        "clock set back",
        "incarnation raised",
        "retained",
    )
)
"""Alarms that tell of what was done from outside, by us or by the machine, and of no loss. What one
of them holds back is in the inbox."""

SESSION_LOSS_ALARMS = frozenset(("broker session lost", "broker state rolled back"))
STATE_LOSS_ALARMS = SESSION_LOSS_ALARMS | {
    "journal restored from copy",
    "journal damaged",
    "inbox damaged",
}
"""Alarms that tell of a memory where it was lost."""

StatusJson = Mapping[str, Any]


async def wait_until_settled(federation: LocalFederation, fault_effects: FaultEffects) -> list[str]:
    """Ask all agents until nothing is wrong with them; return what still is after a while."""
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
    """Return what is wrong with agents that show these pages, by place; None shows nothing."""
    losses = [*fault_effects.closed_losses, *fault_effects.open_losses.values()]
    places_with_loss = {loss.place for loss in losses}
    places_with_state_loss = {
        loss.place for loss in losses if loss.lost_state is LostState.STATE_DIRECTORY
    }
    places = {page["node"]: place for place, page in enumerate(statuses) if page is not None}

    def is_reborn(node: str) -> bool:
        """Whether it lost its state; an id that nobody has any more is of one who did."""
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
        gone = {node for node in delivery["pending"] if node not in places and is_reborn(node)}
        gaps = [
            gap
            for gap in delivery["gaps"]
            if place not in places_with_state_loss and not is_reborn(gap["origin"])
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
            yield f"owes {count} to {node}"
    for name in ("inbox", "inbox_waiting"):
        if delivery[name]:
            yield f"{delivery[name]} in {name}"


def _allowed_alarms(is_forgetful: bool, is_reborn: bool) -> Set[str]:
    """Return which alarms may be; gaps are judged one by one."""
    lost = (
        STATE_LOSS_ALARMS
        if is_reborn
        else SESSION_LOSS_ALARMS
        if is_forgetful
        else frozenset[str]()
    )
    return EXPECTED_ALARMS | lost | {"delivery gap"}


def _alarm_problems(alarms: Mapping[str, str], allowed: Set[str]) -> Iterator[str]:
    for name, text in alarms.items():
        if name not in allowed:
            yield f"alarm {name}: {text}"
