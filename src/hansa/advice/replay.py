"""Measures the cost of recorded traffic by replaying it in the simulator."""

from hansa.advice.federation import RecordedFederation
from hansa.advice.prediction import TrafficCost
from hansa.protocol.interest.groups import group_of
from hansa.protocol.topics import remove_covered
from hansa.simulator.actions import ClientPublish, ClientSubscribe, ScheduledAction
from hansa.simulator.options import LinkOptions, Phases, SimulationOptions
from hansa.simulator.result import SimulationResult
from hansa.simulator.run import simulate
from hansa.simulator.topologies import Topology

START_S = 5.0
"""When the first clients subscribe: all links are established by then."""
CORE_LEAD_S = 1.0
"""How much earlier clients of the core subscribe than those of other members."""
REPLAY_S = 60.0
"""Maximum virtual duration of the sample; longer ones are compressed."""


def replay_cost(federation: RecordedFederation) -> TrafficCost:
    return cost_from_result(federation, simulate(replay_options(federation)))


def cost_from_result(federation: RecordedFederation, result: SimulationResult) -> TrafficCost:
    """Convert a simulation result. Publications without interest elsewhere do not count."""
    delivered_sample = [
        each
        for each in federation.sample
        if any(node != each.origin for node in federation.interested_nodes(each.topic))
    ]
    count = len(delivered_sample) or 1
    delay = result.delay_ms.mean if result.delay_ms else 0.0
    return TrafficCost(
        delay, result.data_bytes / count, result.data_frames / count, len(federation.groups())
    )


def replay_options(federation: RecordedFederation) -> SimulationOptions:
    """Return a simulation with the same nodes, links, delays, interest, cores and sample."""
    numbers = {node: number for number, node in enumerate(federation.nodes)}
    link_numbers = {link: sorted((numbers[link[0]], numbers[link[1]])) for link in federation.links}
    delays = tuple((a, b, federation.links[link] / 2) for link, (a, b) in link_numbers.items())
    topology = Topology(
        "recorded",
        len(numbers),
        tuple(sorted((a, b) for a, b in link_numbers.values())),
        federation.nodes,
    )
    traffic_at = START_S + 2 * CORE_LEAD_S + 1.0
    span = max((each.at_s for each in federation.sample), default=0.0)
    time_scale = min(1.0, REPLAY_S / span) if span else 1.0
    published = [
        ScheduledAction(
            traffic_at + time_scale * each.at_s,
            ClientPublish(numbers[each.origin], each.topic, payload_bytes=each.payload_bytes),
        )
        for each in federation.sample
    ]
    return SimulationOptions(
        topology,
        federation.protocol,
        seed=1,
        links=LinkOptions(delays_ms=delays),
        schedule=(*_subscriptions(federation, numbers), *published),
        phases=Phases(warm_up_s=traffic_at, traffic_s=time_scale * span, settle_s=2.0),
        check_invariants=False,
    )


def _subscriptions(
    federation: RecordedFederation, numbers: dict[str, int]
) -> list[ScheduledAction]:
    """Subscribe the clients of cores first: the first node with interest becomes the core."""
    core_by_group = {
        group: federation.core(group, members) for group, members in federation.groups().items()
    }
    return [
        ScheduledAction(
            START_S + (0 if core_by_group[group] == node else CORE_LEAD_S),
            ClientSubscribe(numbers[node], each),
        )
        for node in federation.nodes
        for each in remove_covered(federation.interest.get(node, ()))
        for group in (group_of(each, federation.protocol.group_depth),)
    ]
