"""Random runs: all kinds are drawn, and the seed determines them."""

from dataclasses import fields, replace

import pytest

from hansa.protocol.routing import STRATEGIES
from hansa.simulator.analysis.convergence import convergence_limit_s
from hansa.simulator.options import FaultCounts
from hansa.simulator.run import simulate
from hansa.simulator.scenarios.sampling import NODES_MAX, random_options

SAMPLE = [random_options(seed) for seed in range(400)]


def test_seed_determines_the_options():
    assert random_options(7) == random_options(7)
    assert random_options(7) != random_options(8)


def test_one_seed_is_the_same_trial_for_every_strategy():
    other = random_options(7, "paths")
    assert other.protocol.strategy == "paths"
    mesh = replace(other.protocol, strategy=random_options(7).protocol.strategy)
    assert replace(other, protocol=mesh) == random_options(7)


def test_all_topologies_and_sizes_are_drawn():
    kinds = {options.topology.name.partition(":")[0] for options in SAMPLE}
    assert kinds == {"ring", "line", "star", "tree", "full", "grid", "random", "geometric"}
    sizes = {options.topology.nodes for options in SAMPLE}
    assert min(sizes) == 2
    assert max(sizes) == NODES_MAX


def test_all_settings_are_drawn():
    protocols = [options.protocol for options in SAMPLE]
    assert {protocol.redundancy for protocol in protocols} == {1, 2, 3}
    assert len({protocol.non_member_forwarding for protocol in protocols}) == 3
    assert len({protocol.metric for protocol in protocols}) == 2
    assert len({protocol.management_by for protocol in protocols}) == 2
    assert {protocol.group_depth for protocol in protocols} == {0, 1, 2}
    assert {options.links.is_ordered for options in SAMPLE} == {True, False}
    assert {options.encode_frames for options in SAMPLE} == {True, False}
    assert {options.shuffle_ids for options in SAMPLE} == {True, False}


def test_tight_bounds_are_drawn():
    tight = [options for options in SAMPLE if options.protocol.plans_max == 2]
    assert len(tight) > 50
    assert all(options.protocol.nodes_max >= options.topology.nodes for options in tight)


def test_hard_deliveries_are_drawn():
    hard = [options for options in SAMPLE if options.protocol.uncommitted_max < 100]
    assert {options.protocol.out_of_order_max for options in hard} == {0, 2, 8_192}
    assert {options.protocol.repair_frames for options in hard} == {1, 3, 8}
    assert {options.disk.inbox_max for options in hard if options.disk} == {5, 100_000}
    longest = [delay for options in hard for _, _, delay in options.links.delays_ms]
    assert max(longest) > 500


def test_loss_of_30_percent_is_drawn():
    assert {options.links.loss for options in SAMPLE} == {0.0, 0.01, 0.1, 0.2, 0.3}


def test_narrow_links_are_drawn():
    narrow = [options for options in SAMPLE if options.links.frames_in_flight_max]
    assert {options.links.frames_in_flight_max for options in narrow} == {5, 20}
    assert all(options.links.is_ordered and options.disk for options in narrow)


def test_short_leases_are_drawn():
    short = [options for options in SAMPLE if options.protocol.interest_lease < 60]
    assert len(short) > 15
    for options in short:
        assert options.faults.partitions
        assert options.faults.outage_s[1] > options.protocol.interest_lease
        assert options.phases.traffic_s > options.faults.outage_s[1] / 2
        assert options.disk


def test_all_faults_are_drawn():
    # Compromised members are drawn by the scenario `byzantine`, which has other claims.
    for field in fields(FaultCounts):
        if field.name not in ("outage_s", "byzantine"):
            assert any(getattr(options.faults, field.name) for options in SAMPLE), field.name


def test_every_run_has_time_to_converge():
    assert all(options.phases.settle_s > convergence_limit_s(options) for options in SAMPLE)
    assert all(options.phases.final_s > 0 for options in SAMPLE)


def test_all_disks_and_brokers_are_drawn():
    disks = [options.disk for options in SAMPLE if options.disk]
    assert {disk.partial_writes for disk in disks} == {True, False}
    assert {disk.in_flight_max for disk in disks} == {1, 20}


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "mesh"])
@pytest.mark.parametrize("seed", [4, 6, 9])
def test_every_strategy_keeps_its_invariants_on_random_runs(seed, strategy):
    assert simulate(random_options(seed, strategy)).violations == ()
