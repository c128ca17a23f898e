"""What agents say of themselves when all is over: they owe nothing, nothing waits, and they raise
no alarm but what was done to them explains. A pure judgement over their pages, and how they are
asked.
"""

import asyncio
import http.client
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from hansa.testbed.chaos.fault_effects import Harm, Memory
from hansa.testbed.federation import LocalFederation, LocalNode

SETTLE_S = 30.0
"""Seconds until all receipts are where they belong; an old copy begins a new epoch before that."""
POLL_S = 0.25

ON_PURPOSE = frozenset(
    (
        "broker ends connections",
        "broker queue",
        "broker quota",
        "broker session taken over",
        "broker session unsure",
        "clock",
        "identity",
        "retained",
    )
)
"""Alarms that tell of what was done from outside, by us or by the machine, and of no loss. What one
of them holds back is in the inbox."""

SESSION_LOST = frozenset(("broker session lost", "broker went back"))
STATE_LOST = SESSION_LOST | {"journal restored", "journal damaged", "inbox damaged"}
"""Alarms that tell of a memory where it was lost."""

Page = Mapping[str, Any]


async def settled(federation: LocalFederation, harm: Harm) -> list[str]:
    """Ask all agents until nothing is wrong with them; return what still is after a while."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_S
    while True:
        pages = [await asyncio.to_thread(_page, node) for node in federation.nodes]
        found = complaints(pages, harm)
        if not found or loop.time() > deadline:
            return found
        await asyncio.sleep(POLL_S)


def _page(node: LocalNode) -> Page | None:
    try:
        return node.status()
    except (OSError, http.client.HTTPException):
        return None


def complaints(pages: Sequence[Page | None], harm: Harm) -> list[str]:
    """Return what is wrong with agents that show these pages, by place; None shows nothing."""
    losses = [*harm.losses, *harm.forgetful.values()]
    forgetful = {loss.place for loss in losses}
    reborn = {loss.place for loss in losses if loss.memory is Memory.STATE}
    places = {page["node"]: place for place, page in enumerate(pages) if page is not None}

    def is_reborn(node: str) -> bool:
        """Whether it lost its state; an id that nobody has any more is of one who did."""
        return places[node] in reborn if node in places else bool(reborn)

    found: list[str] = []
    for place, page in enumerate(pages):
        if page is None:
            found.append(f"agent {place} does not answer")
            continue
        delivery = page["delivery"]
        gone = {node for node in delivery["owed"] if node not in places and is_reborn(node)}
        gaps = [
            gap for gap in delivery["gaps"] if place not in reborn and not is_reborn(gap["origin"])
        ]
        wrong = (
            *_queues(delivery, gone),
            *_alarms(page["alarms"], _explained(place in forgetful, place in reborn)),
            *(f"gap {each['first']} to {each['last']} of {each['origin']}" for each in gaps),
        )
        found += [f"agent {place}: {text}" for text in wrong]
    return found


def _queues(delivery: Page, gone: Set[str]) -> Iterator[str]:
    for node, count in delivery["owed"].items():
        if count and node not in gone:
            yield f"owes {count} to {node}"
    for name in ("inbox", "inbox_waiting"):
        if delivery[name]:
            yield f"{delivery[name]} in {name}"


def _explained(is_forgetful: bool, is_reborn: bool) -> Set[str]:
    """Return which alarms may be; gaps are judged one by one."""
    lost = STATE_LOST if is_reborn else SESSION_LOST if is_forgetful else frozenset[str]()
    return ON_PURPOSE | lost | {"gap"}


def _alarms(alarms: Mapping[str, str], explained: Set[str]) -> Iterator[str]:
    for name, text in alarms.items():
        if name not in explained:
            yield f"alarm {name}: {text}"
