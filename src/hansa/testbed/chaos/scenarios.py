"""All chaos scenarios by name, with the numbers of docs/simulator.md for the faults they inject.

F1 agent killed, F2 agent suspended, F3 broker restarted or without its state, F4 degraded broker,
F5 links, F6 partitions, F7 clogged links, F8 quality of links, F12 membership, F14 cores, F15 churn
of subscriptions, F16 slow readers, F19 scripted combinations.
"""

import asyncio
import itertools
import random
from dataclasses import dataclass

from hansa.testbed.chaos.faults import agents, brokers, links
from hansa.testbed.chaos.faults.runner import ChaosFault, do_nothing, run_fault, run_together
from hansa.testbed.chaos.federation import CUTTABLE_LINKS, ChaosFederation
from hansa.testbed.federation import LinkProfile

FAULT_DURATION_S = 4.2
"""Seconds of one fault in `all-in-turn` and `pairs`: two minutes are enough for each once."""
PAUSE_S = FAULT_DURATION_S / 3
"""Seconds without faults after each: a quarter of the time."""


@dataclass(frozen=True, slots=True)
class ChaosScenario:
    name: str
    description: str
    fault: ChaosFault
    has_two_sides: bool = False
    """Whether clients are placed on both sides of a partition."""
    payload_bytes: int = 0
    """Least length of payloads."""
    link_profile: LinkProfile = CUTTABLE_LINKS
    seed_text: str = ""
    """Part of the seed, if it is not the name: a former name, so that old seeds replay the same."""

    @property
    def nodes_min(self) -> int:
        return 4 if self.has_two_sides else 2

    def make_rng(self, seed: int) -> random.Random:
        return random.Random(f"{seed} {self.seed_text or self.name}")


TRANSIENT_FAULTS = (
    agents.kill_agents,
    agents.suspend_agents,
    agents.stop_agents_gracefully,
    agents.clone_agents,
    agents.disrupt_cores,
    agents.suspend_and_kill,
    agents.isolate_and_kill,
    agents.kill_only_forwarder,
    agents.kill_after_capture,
    brokers.restart_brokers,
    brokers.take_over_sessions,
    brokers.churn_subscribers,
    brokers.add_slow_readers,
    links.cut_links,
    links.reset_links,
    links.cut_one_way,
    links.flap_links,
    links.partition_in_halves,
    links.isolate_nodes,
    links.clog_links,
    links.degrade_links,
)
"""Faults that end by themselves and after which no publication may be missing."""

AGENT_FAULTS = frozenset(
    (
        agents.kill_agents,
        agents.suspend_agents,
        agents.disrupt_cores,
        agents.suspend_and_kill,
        agents.isolate_and_kill,
        agents.kill_only_forwarder,
    )
)
EXCLUSIVE_FAULTS = frozenset(
    (agents.stop_agents_gracefully, agents.clone_agents, agents.kill_after_capture)
)
"""Faults that check how an agent ends: no other fault may end it meanwhile."""
COMPATIBLE_PAIRS = [
    pair
    for pair in itertools.combinations(TRANSIENT_FAULTS, 2)
    if not EXCLUSIVE_FAULTS.intersection(pair)
    or len((EXCLUSIVE_FAULTS | AGENT_FAULTS).intersection(pair)) < len(pair)
]


async def _run_all_in_turn(chaos: ChaosFederation, rng: random.Random) -> None:
    """All transient faults in random order, each once before any is repeated."""
    for fault in itertools.cycle(rng.sample(TRANSIENT_FAULTS, len(TRANSIENT_FAULTS))):
        await run_fault(fault, chaos, rng, FAULT_DURATION_S)
        await asyncio.sleep(PAUSE_S)


async def _run_pairs(chaos: ChaosFederation, rng: random.Random) -> None:
    while True:
        await run_fault(_make_pair(*rng.choice(COMPATIBLE_PAIRS)), chaos, rng, FAULT_DURATION_S)
        await asyncio.sleep(PAUSE_S)


def _make_pair(one: ChaosFault, other: ChaosFault) -> ChaosFault:
    async def both(chaos: ChaosFederation, rng: random.Random) -> None:
        await run_together(chaos, rng, one, other)

    both.__name__ = f"{one.__name__}+{other.__name__}"
    return both


RELAYED_BROKERS = LinkProfile(can_cut=True, relays_brokers=True)
DATAGRAM_LINKS = LinkProfile("udp", can_cut=True)
LARGE_PAYLOAD_BYTES = 1_800
"""Bytes of a payload that, with topic and properties, is just below `max_packet_size` of the
restricted broker in `degraded-brokers`."""

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        ChaosScenario("calm", "no faults, as a baseline", do_nothing),
        ChaosScenario(
            "kill-agents",
            "agents are killed and restarted (F1)",
            agents.kill_agents,
            seed_text="kills",
        ),
        ChaosScenario(
            "suspend-agents",
            "agents are suspended for up to 6 s (F2)",
            agents.suspend_agents,
            seed_text="hangs",
        ),
        ChaosScenario(
            "brokers",
            "brokers are stopped gracefully and restarted (F3)",
            brokers.restart_brokers,
        ),
        ChaosScenario(
            "session-loss",
            "brokers are killed, start empty, or lose the agent's session (F3)",
            brokers.lose_broker_sessions,
            seed_text="forgets",
        ),
        ChaosScenario(
            "takeovers",
            "other clients connect with the client id of an agent (F3)",
            brokers.take_over_sessions,
        ),
        ChaosScenario(
            "degraded-brokers",
            "brokers answer late, refuse connections, accept one message at a time (F4)",
            brokers.degrade_brokers,
            link_profile=RELAYED_BROKERS,
            payload_bytes=LARGE_PAYLOAD_BYTES,
            seed_text="manners",
        ),
        ChaosScenario("cuts", "links are cut silently and restored (F5)", links.cut_links),
        ChaosScenario(
            "resets",
            "links are reset at both ends or at one (F5)",
            links.reset_links,
        ),
        ChaosScenario(
            "one-way", "links pass bytes in one direction only, or in none (F5)", links.cut_one_way
        ),
        ChaosScenario("flaps", "a link fails up to ten times a second (F5)", links.flap_links),
        ChaosScenario(
            "halves",
            "partitions in two halves, some with one bridge node (F6)",
            links.partition_in_halves,
        ),
        ChaosScenario(
            "partition",
            "two halves are partitioned until the end (F6)",
            links.partition_until_end,
            has_two_sides=True,
            seed_text="parted",
        ),
        ChaosScenario(
            "isolation",
            "one node is partitioned from all others (F6)",
            links.isolate_nodes,
            seed_text="lonely",
        ),
        ChaosScenario(
            "clogs", "links clog one by one, and clear in another order (F7)", links.clog_links
        ),
        ChaosScenario(
            "delays", "links have up to 2 s delay, jitter, or 64 kbit/s (F8)", links.degrade_links
        ),
        ChaosScenario(
            "losses",
            "datagrams are lost, delayed, duplicated (F8)",
            links.lose_datagrams,
            link_profile=DATAGRAM_LINKS,
        ),
        ChaosScenario(
            "graceful-stops",
            "agents are stopped gracefully and restarted (F12)",
            agents.stop_agents_gracefully,
            seed_text="leaves",
        ),
        ChaosScenario(
            "lost-state",
            "agents restart with an old state directory, or an empty one (F12)",
            agents.rejoin_with_lost_state,
            seed_text="rejoins",
        ),
        ChaosScenario("clones", "a copy of an agent is started (F12)", agents.clone_agents),
        ChaosScenario(
            "cores", "the core of a group is killed or suspended (F14)", agents.disrupt_cores
        ),
        ChaosScenario(
            "lowest-id",
            "nodes with the lowest id join late (F14)",
            agents.rejoin_with_lowest_id,
            seed_text="latecomers",
        ),
        ChaosScenario(
            "churn",
            "clients with covering filters connect and disconnect (F15)",
            brokers.churn_subscribers,
        ),
        ChaosScenario(
            "partition-churn",
            "the same during repeated partitions (F15)",
            links.churn_during_partitions,
            seed_text="parted-churn",
        ),
        ChaosScenario(
            "slow-readers",
            "clients never read, neighbours read slowly (F16)",
            brokers.add_slow_readers,
            seed_text="sleepers",
        ),
        ChaosScenario(
            "part-kill",
            "one node is isolated, another killed, then that one is the bridge (F19)",
            agents.isolate_and_kill,
        ),
        ChaosScenario(
            "only-copy",
            "the core between two sides is killed with what it forwards (F19)",
            agents.kill_only_forwarder,
        ),
        ChaosScenario(
            "capture-kill",
            "origins crash right after a capture (F19)",
            agents.kill_after_capture,
        ),
        ChaosScenario(
            "pause-kill", "agents are suspended, then killed (F19)", agents.suspend_and_kill
        ),
        ChaosScenario(
            "pairs", "two faults at once, then another two", _run_pairs, seed_text="together"
        ),
        ChaosScenario(
            "all-in-turn", "one fault after another", _run_all_in_turn, seed_text="everything"
        ),
    )
}
