"""Random runs: turns a seed into options, to search for failures with many seeds.

The seed decides topology, settings, links, faults and clients. All runs end alike: every fault is
healed, the federation gets its allowed time to converge, and then everything must arrive.
"""

import math
import random
from collections import Counter
from dataclasses import fields, replace

from hansa.protocol.settings import ManagementBy, Metric, NonMemberForwarding, ProtocolSettings
from hansa.simulator.actions import ClientPublish
from hansa.simulator.analysis.convergence import convergence_limit_s
from hansa.simulator.options import (
    DiskOptions,
    FaultCounts,
    LinkOptions,
    Phases,
    SimulationOptions,
    Workload,
)
from hansa.simulator.scenarios.scenario import ClaimRow, FinalSnapshot, SimulationScenario
from hansa.simulator.topologies import Topology, parse_topology
from hansa.simulator.workload import FINAL_SPREAD, random_client_actions

NODES_MAX = 50

NODE_COUNTS = (2, *(3, 4, 5, 6, 8, 10, 12) * 3, *(16, 20, 25) * 2, NODES_MAX)
"""Node counts to choose from. Small federations show most errors, and sooner."""

TIGHT_BOUNDS_SHARE = 0.25
"""Fraction of runs with the smallest possible bounds."""

HARD_DELIVERIES_SHARE = 0.2
"""Fraction of small runs with disks in which inboxes are small or a link is long."""

SHORT_LEASES_SHARE = 0.2
"""Fraction of small runs with disks in which partitions outlast leases."""

SMALL_NODES_MAX = 12
HARD_EXTRA_SETTLE_S = 120.0
"""Additional time for such small runs: repairs may arrive in threes, seconds apart."""

FILTERS = (
    "#",
    "+/temp",
    "plant/#",
    "plant/+",
    "plant/temp",
    "plant/+/state",
    "plant/line1/#",
    "plant/line1/state",
    "plant/line2/state",
    "city/#",
    "city/park",
    "city/park/bench",
    "/",
    "a",
    "a/b",
    "a/+",
    "a/b/c/d/e",
    "$share/team/plant/#",
    "$share/team/a",
    "$SYS/#",
)
"""Filters that overlap in many ways."""

TOPICS = (
    "plant/temp",
    "plant/line1/state",
    "plant/line2/state",
    "city/park",
    "city/park/bench",
    "a",
    "a/b",
    "a/b/c/d/e",
    "/",
    "nobody/wants/this",
    "$SYS/uptime",
)


def random_options(seed: int, strategy: str | None = None) -> SimulationOptions:
    """Return the run of a seed. A given strategy replaces the drawn one, so that one seed is the
    same trial for all strategies."""
    default = ProtocolSettings().strategy
    rng = random.Random(f"{seed} options")
    topology = _topology(rng, seed)
    links = _with_more_loss(seed, _links(rng, topology))
    options = SimulationOptions(
        topology=topology,
        protocol=replace(_protocol(rng, links), strategy=strategy or default),
        seed=seed,
        links=links,
        workload=(workload := _workload(rng, topology)),
        disk=_disk(seed) if workload.qos[1] else None,
        faults=_faults(rng),
        shuffle_ids=rng.random() < 0.7,
        capacities=tuple(float(rng.randint(1, 4)) for _ in range(topology.nodes)),
        start_spread_s=rng.choice((0.0, 0.0, 1.0)),
        encode_frames=rng.random() < 0.1,
    )
    options = _with_disk_faults(replace(options, phases=_phases(rng, options)))
    options = _with_hard_deliveries(_with_machine_faults(options))
    options = _with_narrow_links(_with_short_leases(_with_roll_backs(options)))
    options = _with_time_for_abandoned(_with_time_for_deliveries(options))
    return (
        _with_tight_bounds(options)
        if random.Random(f"{seed} bounds").random() < TIGHT_BOUNDS_SHARE
        else options
    )


def _with_tight_bounds(options: SimulationOptions) -> SimulationOptions:
    """Make bounds as small as the run allows: plans exceed theirs, the rest just fits."""
    faults = options.faults
    newcomers = faults.lossy_restarts + faults.clones
    protocol = replace(
        options.protocol,
        plans_max=2,
        filters_per_node_max=len(options.workload.filters),
        nodes_max=options.topology.nodes + newcomers,
    )
    return replace(options, protocol=protocol)


def _topology(rng: random.Random, seed: int) -> Topology:
    nodes = rng.choice(NODE_COUNTS)
    words = [
        f"ring:{max(3, nodes)}",
        f"line:{min(nodes, 20)}",
        f"star:{nodes}",
        f"tree:{nodes}",
        f"full:{min(nodes, 12)}",
        f"grid:{max(1, int(nodes**0.5))}x{max(2, int(nodes**0.5))}",
        f"random:{nodes},{min(nodes - 1, rng.choice((2, 3, 4)))}",
        f"geometric:{nodes},{rng.choice((0.2, 0.3, 0.5))}",
    ]
    return parse_topology(rng.choice(words), seed)


def _protocol(rng: random.Random, links: LinkOptions) -> ProtocolSettings:
    """On lossy links require many lost heartbeats in a row before a neighbour is lost."""
    return ProtocolSettings(
        heartbeat_interval=0.5 if links.loss else 1.0,
        heartbeat_limit=5.0 if links.loss else 3.0,
        redundancy=rng.choice((1, 2, 2, 3)),
        non_member_forwarding=rng.choice(list(NonMemberForwarding)),
        metric=rng.choice((Metric.HOPS, Metric.HOPS, Metric.RTT)),
        management_by=rng.choice(list(ManagementBy)),
        group_depth=rng.choice((0, 0, 0, 1, 2)),
        dedup_window=rng.choice((256, 4096)),
    )


def _links(rng: random.Random, topology: Topology) -> LinkOptions:
    delay = rng.choice((0.2, 1.0, 5.0, 20.0))
    links = LinkOptions(
        delay_ms=delay,
        jitter_ms=rng.choice((0.0, 0.0, delay / 2, 2 * delay)),
        close_delay_ms=rng.choice((0.0, 0.0, 50.0)),
    )
    if rng.random() < 0.3:
        slow = [link for link in topology.links if rng.random() < 0.3]
        links = replace(links, delays_ms=tuple((a, b, rng.uniform(0.1, 40)) for a, b in slow))
    if rng.random() < 0.3:
        links = replace(
            links,
            loss=rng.choice((0.0, 0.01, 0.1, 0.2)),
            duplicate=rng.choice((0.0, 0.05)),
            reorder=rng.choice((0.01, 0.1)),
        )
    return links


def _with_more_loss(seed: int, links: LinkOptions) -> LinkOptions:
    """Raise the loss from 0.2 to 0.3 in half of the runs that have 0.2."""
    rng = random.Random(f"{seed} 30 % loss")
    return replace(links, loss=0.3) if links.loss == 0.2 and rng.random() < 0.5 else links


def _faults(rng: random.Random) -> FaultCounts:
    """A few kinds, a few times each: many kinds at once hide each other's effects."""

    def some(most: int) -> int:
        return rng.randint(1, most) if rng.random() < 0.3 else 0

    return FaultCounts(
        cuts=some(4),
        silent_cuts=some(3),
        one_way_cuts=some(3),
        partitions=some(2),
        flaps=some(2),
        crashes=some(4),
        power_offs=some(3),
        freezes=some(3),
        lossy_restarts=some(2),
        broker_restarts=some(2),
        link_changes=some(3),
        clones=some(1),
        outage_s=(0.05, rng.choice((1.0, 5.0, 8.0))),
    )


def _workload(rng: random.Random, topology: Topology) -> Workload:
    return Workload(
        subscribers=rng.randint(1, 2 * topology.nodes),
        filters=tuple(rng.sample(FILTERS, rng.randint(1, 8))),
        publishers=rng.randint(1, 4),
        topics=tuple(rng.sample(TOPICS, rng.randint(2, 5))),
        rate=rng.choice((2.0, 10.0, 50.0)),
        payload_bytes=rng.choice((8, 64, 1000)),
        qos=rng.choice(((1.0, 0.0, 0.0), (2.0, 1.0, 1.0))),
        churn=rng.choice((0.0, 0.5, 3.0)),
    )


def _disk(seed: int) -> DiskOptions:
    rng = random.Random(f"{seed} disk")
    sync_ms = rng.choice((0.0, 0.5, 5.0, 50.0))
    rng = random.Random(f"{seed} disk bounds")
    return DiskOptions(
        sync_ms,
        journal_max=rng.choice((20, *(1_000_000,) * 9)),
        broker_queue_max=rng.choice((10, *(100_000,) * 9)),
    )


def _with_disk_faults(options: SimulationOptions) -> SimulationOptions:
    """Let disks stall and observers be slow, in some runs with disks."""
    rng = random.Random(f"{options.seed} disk faults")
    faults = replace(options.faults, stalls=rng.choice((0, 0, 0, 1, 3)))
    links = replace(options.links, observe_delay_ms=rng.choice((0.1, 0.1, 0.1, 300.0)))
    return replace(options, faults=faults, links=links) if options.disk else options


def _with_machine_faults(options: SimulationOptions) -> SimulationOptions:
    """Let clocks jump, brokers refuse their agents and disks fail, in some runs; in half of those
    with disks a crash leaves part of the unsynced writes."""
    rng = random.Random(f"{options.seed} machine faults")
    faults = replace(
        options.faults,
        clock_jumps=rng.choice((0, 0, 0, 2)),
        refusals=rng.choice((0, 0, 0, 1, 3)),
    )
    if options.disk is None:
        return replace(options, faults=faults)
    faults = replace(faults, disk_failures=rng.choice((0, 0, 0, 2)))
    disk = replace(
        options.disk,
        in_flight_max=rng.choice((1, 20, 20)),
        partial_writes=rng.choice((False, True)),
    )
    return replace(options, faults=faults, disk=disk)


def _with_time_for_deliveries(options: SimulationOptions) -> SimulationOptions:
    """Prolong the settling time if deliveries one by one, two syncs each, may take longer. This
    comes last: other conditions change the number of publications."""
    disk, workload, phases = options.disk, options.workload, options.phases
    if disk is None:
        return options
    guaranteed_share = sum(workload.qos[1:]) / sum(workload.qos)
    count = workload.publishers * workload.rate * phases.traffic_s * guaranteed_share
    deliveries_s = count * 2 * disk.sync_ms / 1000 / disk.in_flight_max
    if deliveries_s <= phases.settle_s:
        return options
    return replace(options, phases=replace(phases, settle_s=deliveries_s))


def _with_time_for_abandoned(options: SimulationOptions) -> SimulationOptions:
    """Prolong the final phase if a node may return after its lease. An origin that was restarted
    sends it first what it had abandoned and still has (7.12), a few publications per round trip."""
    disk, protocol, phases = options.disk, options.protocol, options.phases
    if disk is None or protocol.interest_lease >= phases.traffic_s:
        return options
    per_frame = max(1, protocol.repair_bytes // options.workload.payload_bytes)
    batch = min(protocol.uncommitted_max, protocol.repair_frames * per_frame)
    published = Counter(
        step.action.node
        for step in random_client_actions(options)
        if isinstance(step.action, ClientPublish) and step.action.qos
    )
    trips = math.ceil(max(published.values()) / batch)
    links = options.links
    slow_ms = sum(delay for _, _, delay in links.delays_ms)
    path_ms = slow_ms + options.topology.nodes * (links.delay_ms + links.jitter_ms)
    trip_s = 2 * (path_ms + disk.sync_ms) / 1000 + protocol.receipt_delay + protocol.repair_delay
    final_s = max(phases.final_s, trips * trip_s / (1 - FINAL_SPREAD))
    return replace(options, phases=replace(phases, final_s=final_s))


def _with_hard_deliveries(options: SimulationOptions) -> SimulationOptions:
    """In some runs with disks make inboxes and repairs small, and one link so long that frames in
    flight outlive the node that requested them. Clients stay, so that much is guaranteed, and
    agents crash while their disks stall."""
    rng = random.Random(f"{options.seed} hard deliveries")
    is_small = options.topology.nodes <= SMALL_NODES_MAX
    if options.disk is None or not is_small or rng.random() >= HARD_DELIVERIES_SHARE:
        return options
    protocol = replace(
        options.protocol,
        uncommitted_max=rng.choice((3, 30, 8_192)),
        out_of_order_max=rng.choice((0, 2, 8_192)),
        repair_bytes=rng.choice((500, 2_000, 65_536)),
        repair_frames=rng.choice((1, 3, 8)),
    )
    links, long_link = options.links, rng.choice(options.topology.links)
    if links.is_ordered and rng.random() < 0.7:
        links = replace(links, delays_ms=((*long_link, rng.uniform(200.0, 1_000.0)),))
    faults = replace(
        options.faults,
        cuts=rng.randint(1, 4),
        crashes=rng.randint(2, 6),
        stalls=rng.randint(1, 3),
        clones=0,
    )
    workload = _with_broad_interest(options.workload, rate=rng.choice((2.0, 10.0)))
    disk = replace(options.disk, inbox_max=rng.choice((5, 100_000)))
    hard = replace(
        options, protocol=protocol, links=links, faults=faults, workload=workload, disk=disk
    )
    settled_s = convergence_limit_s(hard)
    return replace(hard, phases=Phases(settled_s, 15.0, settled_s + HARD_EXTRA_SETTLE_S, 15.0))


def _with_roll_backs(options: SimulationOptions) -> SimulationOptions:
    """Roll state directories back, in some runs with disks. In small ones nearly all nodes publish
    and subscribe."""
    rng = random.Random(f"{options.seed} old states")
    roll_backs = rng.choice((0, 0, 0, 1)) * rng.randint(1, 2)
    if options.disk is None or not roll_backs:
        return options
    workload, nodes = options.workload, options.topology.nodes
    if nodes <= SMALL_NODES_MAX:
        workload = replace(_with_broad_interest(workload, rate=2.0), publishers=2 * nodes)
    faults = replace(options.faults, roll_backs=roll_backs)
    return replace(options, faults=faults, workload=workload)


def _with_narrow_links(options: SimulationOptions) -> SimulationOptions:
    """Limit the frames in flight per link, in some small runs with disks, and make one link so slow
    that the limit matters. Publications dropped again are requested with growing delay."""
    rng = random.Random(f"{options.seed} narrow links")
    window = rng.choice((0, 0, 0, 5, 20))
    is_small = options.topology.nodes <= SMALL_NODES_MAX
    if not (window and is_small and options.disk and options.links.is_ordered):
        return options
    slow = (*rng.choice(options.topology.links), rng.uniform(100.0, 500.0))
    delays_ms = (*options.links.delays_ms, slow)
    narrow = replace(
        options,
        links=replace(options.links, frames_in_flight_max=window, delays_ms=delays_ms),
        workload=_with_broad_interest(options.workload, min(10.0, options.workload.rate)),
    )
    settle_s = max(options.phases.settle_s, convergence_limit_s(narrow) + 0.5)
    return replace(narrow, phases=replace(options.phases, settle_s=settle_s, final_s=40.0))


def _with_broad_interest(workload: Workload, rate: float) -> Workload:
    """Let clients subscribe to nearly everything, and stay."""
    return replace(
        workload, filters=("#", "+/#", "plant/#"), rate=rate, qos=(0.0, 1.0, 1.0), churn=0.0
    )


def _with_short_leases(options: SimulationOptions) -> SimulationOptions:
    """Let some outages outlast a lease, in some small runs. A broker that was away as long must get
    what it missed before the end."""
    rng = random.Random(f"{options.seed} leases")
    is_small = options.topology.nodes <= SMALL_NODES_MAX
    if options.disk is None or not is_small or rng.random() >= SHORT_LEASES_SHARE:
        return options
    lease_s = rng.choice((1.5, 3.0)) * options.protocol.heartbeat_limit
    return replace(
        options,
        protocol=replace(options.protocol, interest_lease=lease_s),
        faults=replace(
            options.faults,
            partitions=rng.randint(1, 3),
            outage_s=(0.05, rng.choice((1.5, 3.0)) * lease_s),
        ),
        phases=replace(options.phases, traffic_s=rng.choice((3.0, 5.0)) * lease_s),
        workload=replace(options.workload, rate=2.0),
        disk=replace(options.disk, in_flight_max=20),
    )


def _phases(rng: random.Random, options: SimulationOptions) -> Phases:
    """On lossy links repair requests get lost, too, and each retry waits longer."""
    return Phases(
        warm_up_s=rng.choice((0.5, 3.0)),
        traffic_s=rng.choice((5.0, 10.0)),
        settle_s=convergence_limit_s(options) + 0.5,
        final_s=15.0 if options.links.loss else 5.0,
    )


# ---------------------------------------------------------------- as a scenario


def describe_draw(final: FinalSnapshot) -> list[ClaimRow]:
    """Describe what the seed has drawn; the checkers decide."""
    options = final.options
    protocol, links, faults, clients = (
        options.protocol,
        options.links,
        options.faults,
        options.workload,
    )
    words = {
        "settings": f"strategy {protocol.strategy}, redundancy {protocol.redundancy}, non-member"
        f" forwarding {protocol.non_member_forwarding}, metric {protocol.metric}, management by"
        f" {protocol.management_by}, group depth {protocol.group_depth}",
        "links": f"{links.delay_ms:g} ms and up to {links.jitter_ms:g} more,"
        f" loss {links.loss:g}, duplicate {links.duplicate:g}, reorder {links.reorder:g}",
        "clients": f"subscriptions {clients.subscribers}, filters {len(clients.filters)},"
        f" publishers {clients.publishers}, each {clients.rate:g}/s",
        "faults": ",".join(
            f"{field.name.replace('_', '-')}={count}"
            for field in fields(faults)
            if isinstance(count := getattr(faults, field.name), int) and count
        )
        or "none",
    }
    return [ClaimRow(what, "", drawn) for what, drawn in words.items()]


SCENARIO = SimulationScenario(
    "random",
    "anything: the seed draws topology, settings, links, clients and faults",
    "For every seed all invariants hold.",
    lambda settings, seed: random_options(seed, settings.strategy),
    describe_draw,
    is_drawn_from_seed=True,
)
