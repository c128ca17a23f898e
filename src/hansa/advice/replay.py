"""Plays recorded traffic through the simulator: the protocol itself says what a change does."""

from hansa.advice.reckoning import Cost
from hansa.advice.recorded import Recorded
from hansa.protocol.interest.groups import group_of
from hansa.protocol.topics import minimal
from hansa.simulator.actions import Publish, Step, Subscribe
from hansa.simulator.options import LinkOptions, Options, Phases
from hansa.simulator.result import Result
from hansa.simulator.run import simulate
from hansa.simulator.topologies import Topology

START_S = 5.0
"""When the first clients subscribe: all links stand by then."""
LEAD_S = 1.0
"""What the core of a group is ahead of its other members."""
REPLAY_S = 60.0
"""Virtual seconds into which the sample is fitted; time between publications is shortened."""


def replay(recorded: Recorded) -> Cost:
    """Return what the sample costs."""
    return cost_of(recorded, simulate(options_of(recorded)))


def cost_of(recorded: Recorded, result: Result) -> Cost:
    """Return a result in the words of `reckoning`. What nobody else wanted costs nothing there."""
    wanted = [
        each
        for each in recorded.sample
        if any(node != each.origin for node in recorded.wanters(each.topic))
    ]
    count = len(wanted) or 1
    delay = result.delay_ms.mean if result.delay_ms else 0.0
    return Cost(
        delay, result.data_bytes / count, result.data_frames / count, len(recorded.groups())
    )


def options_of(recorded: Recorded) -> Options:
    """Return the run: same nodes, links, delays, wishes and cores, and the sample."""
    place = {node: number for number, node in enumerate(recorded.nodes)}
    ends = {link: sorted((place[link[0]], place[link[1]])) for link in recorded.links}
    delays = tuple((a, b, recorded.links[link] / 2) for link, (a, b) in ends.items())
    topology = Topology(
        "recorded", len(place), tuple(sorted((a, b) for a, b in ends.values())), recorded.nodes
    )
    traffic_at = START_S + 2 * LEAD_S + 1.0
    span = max((each.at_s for each in recorded.sample), default=0.0)
    pace = min(1.0, REPLAY_S / span) if span else 1.0
    published = [
        Step(
            traffic_at + pace * each.at_s,
            Publish(place[each.origin], each.topic, payload_bytes=each.payload_bytes),
        )
        for each in recorded.sample
    ]
    return Options(
        topology,
        recorded.protocol,
        seed=1,
        links=LinkOptions(delays_ms=delays),
        schedule=(*_subscriptions(recorded, place), *published),
        phases=Phases(warm_up_s=traffic_at, traffic_s=pace * span, settle_s=2.0),
        check=False,
    )


def _subscriptions(recorded: Recorded, place: dict[str, int]) -> list[Step]:
    """The first to want a group leads it, so cores come first."""
    leading = {group: recorded.core(group, who) for group, who in recorded.groups().items()}
    return [
        Step(START_S + (0 if leading[group] == node else LEAD_S), Subscribe(place[node], each))
        for node in recorded.nodes
        for each in minimal(recorded.wants.get(node, ()))
        for group in (group_of(each, recorded.protocol.group_depth),)
    ]
