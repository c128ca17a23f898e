"""What clients do by themselves: a workload and a seed become steps of a schedule."""

import random
from collections.abc import Iterator

from hansa.simulator.actions import Publish, Step, Subscribe, Unsubscribe
from hansa.simulator.options import Options

FINAL_SPREAD = 0.5
"Part of the final phase in which its publications are made; the rest is for them to arrive."


def random_clients(options: Options) -> list[Step]:
    """Return the steps of all clients, those of the start first."""
    subscriptions = _first_subscriptions(options)
    return [
        *(Step(0.0, subscription) for subscription in subscriptions),
        *_churn(options, subscriptions),
        *_traffic(options),
        *_final(options),
    ]


def _first_subscriptions(options: Options) -> list[Subscribe]:
    chance = random.Random(f"{options.seed} subscribers")
    nodes = range(options.topology.nodes)
    return [
        Subscribe(chance.choice(nodes), chance.choice(options.workload.filters))
        for _ in range(options.workload.subscribers)
    ]


def _churn(options: Options, subscriptions: list[Subscribe]) -> Iterator[Step]:
    """Clients come and go: about as many as there were at first."""
    chance = random.Random(f"{options.seed} churn")
    present = list(subscriptions)
    start, length = options.phases.warm_up_s, options.phases.traffic_s
    count = round(options.workload.churn * length)
    for at in sorted(chance.uniform(start, start + length) for _ in range(count)):
        if present and chance.random() < 0.5:
            gone = present.pop(chance.randrange(len(present)))
            yield Step(at, Unsubscribe(gone.node, gone.filter))
        else:
            node = chance.randrange(options.topology.nodes)
            present.append(Subscribe(node, chance.choice(options.workload.filters)))
            yield Step(at, present[-1])


def _traffic(options: Options) -> Iterator[Step]:
    """Each publisher publishes at its own steady pace, with its own phase."""
    chance = random.Random(f"{options.seed} publishers")
    workload, phases = options.workload, options.phases
    interval = 1 / workload.rate
    for _ in range(workload.publishers):
        node = chance.randrange(options.topology.nodes)
        offset = chance.uniform(0.0, interval)
        for turn in range(int((phases.traffic_s - offset) / interval) + 1):
            at = phases.warm_up_s + offset + turn * interval
            if at < phases.warm_up_s + phases.traffic_s:
                yield Step(at, _publication(options, node, chance))


def _publication(options: Options, node: int, chance: random.Random) -> Publish:
    workload = options.workload
    (qos,) = chance.choices((0, 1, 2), workload.qos)
    topic = chance.choice(workload.topics)
    return Publish(node, topic, workload.payload_bytes, qos=qos)


def _final(options: Options) -> Iterator[Step]:
    """Every node publishes once to every topic, and with disks to one of them at QoS 1 or 2."""
    phases, topics = options.phases, options.workload.topics
    if not options.workload.final or not phases.final_s:
        return
    count = options.topology.nodes * len(topics)
    for number in range(count):
        node, topic = number % options.topology.nodes, topics[number // options.topology.nodes]
        at = phases.end_s - phases.final_s + FINAL_SPREAD * phases.final_s * number / count
        yield Step(at, Publish(node, topic, options.workload.payload_bytes))
        if options.disk and topic == topics[node % len(topics)]:
            qos = 1 + number % 2
            yield Step(at, Publish(node, topic, options.workload.payload_bytes, qos=qos))
