"""Every kind of trouble by name, with the fault of our list that it stands for: F1 agent killed, F2
agent hangs, F3 broker restarted, F4 its manners, F5 links, F6 partitions, F7 clogs, F8 quality of
links, F12 membership, F14 cores, F15 churn, F16 slow ones, F19 scripted killers."""

import asyncio
import itertools
import random
from dataclasses import dataclass

from hansa.testbed.chaos import agent_faults
from hansa.testbed.chaos import link_faults as links
from hansa.testbed.chaos.agent_faults import ChaosFault, run_fault, run_together
from hansa.testbed.chaos.testbench import CUTTABLE_LINKS, ChaosFederation
from hansa.testbed.federation import LinkProfile

FAULT_DURATION_S = 4.2
"""Two minutes are enough for one of each."""
PAUSE_S = FAULT_DURATION_S / 3
"""A quarter of the time."""


@dataclass(frozen=True, slots=True)
class ChaosScenario:
    """A kind of trouble, by name."""

    name: str
    description: str
    fault: ChaosFault
    has_two_sides: bool = False
    """Whether there are two sides, with a publisher and a subscriber on each."""
    payload_bytes: int = 0
    """How long payloads are at least."""
    link_profile: LinkProfile = CUTTABLE_LINKS

    @property
    def nodes_min(self) -> int:
        """How many nodes it takes."""
        return 4 if self.has_two_sides else 2


TRANSIENT_FAULTS = (
    agent_faults.kill_agents,
    agent_faults.suspend_agents,
    agent_faults.stop_agents_gracefully,
    agent_faults.clone_agents,
    agent_faults.disrupt_cores,
    agent_faults.suspend_and_kill,
    agent_faults.isolate_and_kill,
    agent_faults.kill_only_forwarder,
    agent_faults.kill_after_capture,
    agent_faults.restart_brokers,
    agent_faults.take_over_sessions,
    agent_faults.churn_subscribers,
    agent_faults.add_slow_readers,
    links.cut_links,
    links.reset_links,
    links.cut_one_way,
    links.flap_links,
    links.partition_in_halves,
    links.isolate_nodes,
    links.clog_links,
    links.degrade_links,
)
"""All that lasts for a moment only, and costs nothing by the promise."""

AGENT_FAULTS = frozenset(
    (
        agent_faults.kill_agents,
        agent_faults.suspend_agents,
        agent_faults.disrupt_cores,
        agent_faults.suspend_and_kill,
        agent_faults.isolate_and_kill,
        agent_faults.kill_only_forwarder,
    )
)
EXCLUSIVE_FAULTS = frozenset(
    (
        agent_faults.stop_agents_gracefully,
        agent_faults.clone_agents,
        agent_faults.kill_after_capture,
    )
)
"""They expect an agent to end as they say: nobody else may end it meanwhile."""
COMPATIBLE_PAIRS = [
    pair
    for pair in itertools.combinations(TRANSIENT_FAULTS, 2)
    if not EXCLUSIVE_FAULTS.intersection(pair)
    or len((EXCLUSIVE_FAULTS | AGENT_FAULTS).intersection(pair)) < len(pair)
]
"""Any two of them that do not disturb each other."""


async def _run_all_in_turn(chaos: ChaosFederation, rng: random.Random) -> None:
    """One trouble after another, each once before any comes again, with a quarter of the time in
    peace."""
    for fault in itertools.cycle(rng.sample(TRANSIENT_FAULTS, len(TRANSIENT_FAULTS))):
        await run_fault(fault, chaos, rng, FAULT_DURATION_S)
        await asyncio.sleep(PAUSE_S)


async def _run_pairs(chaos: ChaosFederation, rng: random.Random) -> None:
    """Two troubles at once, and then another two."""
    while True:
        await run_fault(_make_pair(*rng.choice(COMPATIBLE_PAIRS)), chaos, rng, FAULT_DURATION_S)
        await asyncio.sleep(PAUSE_S)


def _make_pair(one: ChaosFault, other: ChaosFault) -> ChaosFault:
    async def both(stage: ChaosFederation, chance: random.Random) -> None:
        await run_together(stage, chance, one, other)

    both.__name__ = f"{one.__name__}+{other.__name__}"
    return both


RELAYED_BROKERS = LinkProfile(can_cut=True, relays_brokers=True)
DATAGRAM_LINKS = LinkProfile("udp", can_cut=True)
LARGE_PAYLOAD_BYTES = 1_800
"""Bytes of a payload that a stingy broker just takes, with topic and properties."""

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        ChaosScenario(
            "calm", "nothing happens: the measure for all others", agent_faults.do_nothing
        ),
        ChaosScenario(
            "kills", "agents are killed and started again (F1)", agent_faults.kill_agents
        ),
        ChaosScenario(
            "hangs", "agents hang for up to six seconds (F2)", agent_faults.suspend_agents
        ),
        ChaosScenario(
            "brokers",
            "brokers are stopped gently and started again (F3)",
            agent_faults.restart_brokers,
        ),
        ChaosScenario(
            "forgets",
            "brokers are killed, start empty, lose a session (F3)",
            agent_faults.lose_broker_sessions,
        ),
        ChaosScenario(
            "takeovers", "others use an agent's client id (F3)", agent_faults.take_over_sessions
        ),
        ChaosScenario(
            "manners",
            "brokers answer late, refuse, take one at a time (F4)",
            agent_faults.degrade_brokers,
            link_profile=RELAYED_BROKERS,
            payload_bytes=LARGE_PAYLOAD_BYTES,
        ),
        ChaosScenario("cuts", "links are cut without a word and mended (F5)", links.cut_links),
        ChaosScenario(
            "resets", "links break off, towards both ends or one (F5)", links.reset_links
        ),
        ChaosScenario(
            "one-way", "links carry one way only, or swallow all (F5)", links.cut_one_way
        ),
        ChaosScenario(
            "flaps", "a link comes and goes up to ten times a second (F5)", links.flap_links
        ),
        ChaosScenario(
            "halves", "two sides, at times with one bridge (F6)", links.partition_in_halves
        ),
        ChaosScenario(
            "parted",
            "two sides do not meet until the end (F6)",
            links.partition_until_end,
            has_two_sides=True,
        ),
        ChaosScenario("lonely", "one node is parted from all others (F6)", links.isolate_nodes),
        ChaosScenario(
            "clogs", "links clog one by one, and clear in another order (F7)", links.clog_links
        ),
        ChaosScenario(
            "delays", "links up to 2 s long, uneven, or of 64 kbit/s (F8)", links.degrade_links
        ),
        ChaosScenario(
            "losses",
            "datagrams are lost, late, twice (F8)",
            links.lose_datagrams,
            link_profile=DATAGRAM_LINKS,
        ),
        ChaosScenario(
            "leaves",
            "agents are stopped gently and started again (F12)",
            agent_faults.stop_agents_gracefully,
        ),
        ChaosScenario(
            "rejoins",
            "agents return with old state, or none (F12)",
            agent_faults.rejoin_with_lost_state,
        ),
        ChaosScenario("clones", "a copy of an agent is started (F12)", agent_faults.clone_agents),
        ChaosScenario(
            "cores", "the core of a group is killed, or pauses (F14)", agent_faults.disrupt_cores
        ),
        ChaosScenario(
            "latecomers",
            "nodes with the lowest id join late (F14)",
            agent_faults.rejoin_with_lowest_id,
        ),
        ChaosScenario(
            "churn",
            "clients with covering filters come and go (F15)",
            agent_faults.churn_subscribers,
        ),
        ChaosScenario(
            "parted-churn",
            "the same while two sides part and meet (F15)",
            links.churn_during_partitions,
        ),
        ChaosScenario(
            "sleepers", "clients never read, neighbours hardly (F16)", agent_faults.add_slow_readers
        ),
        ChaosScenario(
            "part-kill",
            "one node parted, another killed, then that one is the bridge (F19)",
            agent_faults.isolate_and_kill,
        ),
        ChaosScenario(
            "only-copy",
            "the core between two sides dies with what it holds (F19)",
            agent_faults.kill_only_forwarder,
        ),
        ChaosScenario(
            "capture-kill",
            "origins crash right after they captured something (F19)",
            agent_faults.kill_after_capture,
        ),
        ChaosScenario(
            "pause-kill", "agents hang and are then killed (F19)", agent_faults.suspend_and_kill
        ),
        ChaosScenario("together", "two troubles at once, and then another two", _run_pairs),
        ChaosScenario("everything", "one trouble after another", _run_all_in_turn),
    )
}
