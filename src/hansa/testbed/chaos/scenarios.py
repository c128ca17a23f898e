"""Every kind of trouble by name, with the fault of our list that it stands for: F1 agent killed, F2
agent hangs, F3 broker restarted, F4 its manners, F5 links, F6 partitions, F7 clogs, F8 quality of
links, F12 membership, F14 cores, F15 churn, F16 slow ones, F19 scripted killers."""

import asyncio
import itertools
import random
from dataclasses import dataclass

from hansa.testbed.chaos import agent_faults
from hansa.testbed.chaos import link_faults as links
from hansa.testbed.chaos.agent_faults import Trouble, at_once, suffer
from hansa.testbed.chaos.testbench import CABLE, Stage
from hansa.testbed.federation import Cable

SPELL_S = 4.2
"""Two minutes are enough for one of each."""
PEACE_S = SPELL_S / 3
"""A quarter of the time."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of trouble, by name."""

    name: str
    about: str
    trouble: Trouble
    sides: bool = False
    """Whether there are two sides, with a publisher and a subscriber on each."""
    payload_bytes: int = 0
    """How long payloads are at least."""
    cable: Cable = CABLE

    @property
    def nodes_min(self) -> int:
        """How many nodes it takes."""
        return 4 if self.sides else 2


MIXED = (
    agent_faults.kills,
    agent_faults.hangs,
    agent_faults.leaves,
    agent_faults.clones,
    agent_faults.cores,
    agent_faults.pause_kill,
    agent_faults.part_kill,
    agent_faults.only_copy,
    agent_faults.capture_kill,
    agent_faults.restarts,
    agent_faults.takeovers,
    agent_faults.churn,
    agent_faults.sleepers,
    links.cuts,
    links.resets,
    links.one_way,
    links.flaps,
    links.halves,
    links.lonely,
    links.clogs,
    links.delays,
)
"""All that lasts for a moment only, and costs nothing by the promise."""

ON_AGENTS = frozenset(
    (
        agent_faults.kills,
        agent_faults.hangs,
        agent_faults.cores,
        agent_faults.pause_kill,
        agent_faults.part_kill,
        agent_faults.only_copy,
    )
)
ALONE = frozenset((agent_faults.leaves, agent_faults.clones, agent_faults.capture_kill))
"""They expect an agent to end as they say: nobody else may end it meanwhile."""
PAIRS = [
    pair
    for pair in itertools.combinations(MIXED, 2)
    if not ALONE.intersection(pair) or len((ALONE | ON_AGENTS).intersection(pair)) < len(pair)
]
"""Any two of them that do not disturb each other."""


async def _everything(stage: Stage, chance: random.Random) -> None:
    """One trouble after another, each once before any comes again, with a quarter of the time in
    peace."""
    for spell in itertools.cycle(chance.sample(MIXED, len(MIXED))):
        await suffer(spell, stage, chance, SPELL_S)
        await asyncio.sleep(PEACE_S)


async def _together(stage: Stage, chance: random.Random) -> None:
    """Two troubles at once, and then another two."""
    while True:
        await suffer(_both(*chance.choice(PAIRS)), stage, chance, SPELL_S)
        await asyncio.sleep(PEACE_S)


def _both(one: Trouble, other: Trouble) -> Trouble:
    async def both(stage: Stage, chance: random.Random) -> None:
        await at_once(stage, chance, one, other)

    both.__name__ = f"{one.__name__}+{other.__name__}"
    return both


GATED = Cable(can_cut=True, to_brokers=True)
DATAGRAMS = Cable("udp", can_cut=True)
LARGE = 1_800
"""Bytes of a payload that a stingy broker just takes, with topic and properties."""

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("calm", "nothing happens: the measure for all others", agent_faults.calm),
        Scenario("kills", "agents are killed and started again (F1)", agent_faults.kills),
        Scenario("hangs", "agents hang for up to six seconds (F2)", agent_faults.hangs),
        Scenario(
            "brokers", "brokers are stopped gently and started again (F3)", agent_faults.restarts
        ),
        Scenario(
            "forgets", "brokers are killed, start empty, lose a session (F3)", agent_faults.forgets
        ),
        Scenario("takeovers", "others use an agent's client id (F3)", agent_faults.takeovers),
        Scenario(
            "manners",
            "brokers answer late, refuse, take one at a time (F4)",
            agent_faults.manners,
            cable=GATED,
            payload_bytes=LARGE,
        ),
        Scenario("cuts", "links are cut without a word and mended (F5)", links.cuts),
        Scenario("resets", "links break off, towards both ends or one (F5)", links.resets),
        Scenario("one-way", "links carry one way only, or swallow all (F5)", links.one_way),
        Scenario("flaps", "a link comes and goes up to ten times a second (F5)", links.flaps),
        Scenario("halves", "two sides, at times with one bridge (F6)", links.halves),
        Scenario("parted", "two sides do not meet until the end (F6)", links.parted, sides=True),
        Scenario("lonely", "one node is parted from all others (F6)", links.lonely),
        Scenario("clogs", "links clog one by one, and clear in another order (F7)", links.clogs),
        Scenario("delays", "links up to 2 s long, uneven, or of 64 kbit/s (F8)", links.delays),
        Scenario("losses", "datagrams are lost, late, twice (F8)", links.losses, cable=DATAGRAMS),
        Scenario(
            "leaves", "agents are stopped gently and started again (F12)", agent_faults.leaves
        ),
        Scenario("rejoins", "agents return with old state, or none (F12)", agent_faults.rejoins),
        Scenario("clones", "a copy of an agent is started (F12)", agent_faults.clones),
        Scenario("cores", "the core of a group is killed, or pauses (F14)", agent_faults.cores),
        Scenario("latecomers", "nodes with the lowest id join late (F14)", agent_faults.latecomers),
        Scenario("churn", "clients with covering filters come and go (F15)", agent_faults.churn),
        Scenario(
            "parted-churn",
            "the same while two sides part and meet (F15)",
            links.parted_churn,
        ),
        Scenario("sleepers", "clients never read, neighbours hardly (F16)", agent_faults.sleepers),
        Scenario(
            "part-kill",
            "one node parted, another killed, then that one is the bridge (F19)",
            agent_faults.part_kill,
        ),
        Scenario(
            "only-copy",
            "the core between two sides dies with what it holds (F19)",
            agent_faults.only_copy,
        ),
        Scenario(
            "capture-kill",
            "origins crash right after they captured something (F19)",
            agent_faults.capture_kill,
        ),
        Scenario("pause-kill", "agents hang and are then killed (F19)", agent_faults.pause_kill),
        Scenario("together", "two troubles at once, and then another two", _together),
        Scenario("everything", "one trouble after another", _everything),
    )
}
