"""Random clients: turns a workload and a seed into scheduled actions."""

import random
from collections.abc import Iterator

from hansa.simulator.actions import (
    ClientPublish,
    ClientSubscribe,
    ClientUnsubscribe,
    ScheduledAction,
)
from hansa.simulator.options import SimulationOptions

FINAL_SPREAD = 0.5
"""Fraction of the final phase in which clients publish; the rest is for delivery."""


def random_client_actions(options: SimulationOptions) -> list[ScheduledAction]:
    """Return the actions of all clients, initial ones first."""
    subscriptions = _first_subscriptions(options)
    return [
        *(ScheduledAction(0.0, subscription) for subscription in subscriptions),
        *_churn(options, subscriptions),
        *_traffic(options),
        *_final_publications(options),
    ]


def _first_subscriptions(options: SimulationOptions) -> list[ClientSubscribe]:
    rng = random.Random(f"{options.seed} subscribers")
    nodes = range(options.topology.nodes)
    return [
        ClientSubscribe(rng.choice(nodes), rng.choice(options.workload.filters))
        for _ in range(options.workload.subscribers)
    ]


def _churn(
    options: SimulationOptions, subscriptions: list[ClientSubscribe]
) -> Iterator[ScheduledAction]:
    """Clients subscribe and unsubscribe; about as many remain as at first."""
    rng = random.Random(f"{options.seed} churn")
    present = list(subscriptions)
    start, length = options.phases.warm_up_s, options.phases.traffic_s
    count = round(options.workload.churn * length)
    for at in sorted(rng.uniform(start, start + length) for _ in range(count)):
        if present and rng.random() < 0.5:
            gone = present.pop(rng.randrange(len(present)))
            yield ScheduledAction(at, ClientUnsubscribe(gone.node, gone.filter))
        else:
            node = rng.randrange(options.topology.nodes)
            present.append(ClientSubscribe(node, rng.choice(options.workload.filters)))
            yield ScheduledAction(at, present[-1])


def _traffic(options: SimulationOptions) -> Iterator[ScheduledAction]:
    """Each publisher publishes at a constant rate with its own offset."""
    rng = random.Random(f"{options.seed} publishers")
    workload, phases = options.workload, options.phases
    interval = 1 / workload.rate
    for _ in range(workload.publishers):
        node = rng.randrange(options.topology.nodes)
        offset = rng.uniform(0.0, interval)
        for turn in range(int((phases.traffic_s - offset) / interval) + 1):
            at = phases.warm_up_s + offset + turn * interval
            if at < phases.warm_up_s + phases.traffic_s:
                yield ScheduledAction(at, _publication(options, node, rng))


def _publication(options: SimulationOptions, node: int, rng: random.Random) -> ClientPublish:
    workload = options.workload
    (qos,) = rng.choices((0, 1, 2), workload.qos)
    topic = rng.choice(workload.topics)
    return ClientPublish(node, topic, workload.payload_bytes, qos=qos)


def _final_publications(options: SimulationOptions) -> Iterator[ScheduledAction]:
    """Every node publishes once to every topic, and with disks to one of them at QoS 1 or 2."""
    phases, topics = options.phases, options.workload.topics
    if not options.workload.publish_finally or not phases.final_s:
        return
    count = options.topology.nodes * len(topics)
    for number in range(count):
        node, topic = number % options.topology.nodes, topics[number // options.topology.nodes]
        at = phases.end_s - phases.final_s + FINAL_SPREAD * phases.final_s * number / count
        yield ScheduledAction(at, ClientPublish(node, topic, options.workload.payload_bytes))
        if options.disk and topic == topics[node % len(topics)]:
            qos = 1 + number % 2
            yield ScheduledAction(
                at, ClientPublish(node, topic, options.workload.payload_bytes, qos=qos)
            )
