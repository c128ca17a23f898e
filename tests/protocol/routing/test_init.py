"""Strategies are found by the name in the settings."""

import re
import shutil
import subprocess
import sys
from inspect import getfile
from pathlib import Path

import pytest

import hansa
from hansa.errors import UsageError
from hansa.protocol.interest.groups import GroupIndex
from hansa.protocol.membership.graph import Graph
from hansa.protocol.model import MANAGEMENT_GROUP, NodeId
from hansa.protocol.routing import STRATEGIES, elects_cores, make_strategy
from hansa.protocol.routing.base import StrategyContext
from hansa.protocol.settings import Metric, ProtocolSettings


def context_of(strategy: str) -> StrategyContext:
    """The context of a node alone."""
    return StrategyContext(
        node=NodeId(1),
        settings=ProtocolSettings(strategy=strategy),
        graph=Graph(NodeId(1), Metric.HOPS),
        index=GroupIndex(depth=0),
        neighbours={},
        cost=lambda node: 1,
        least_distance=lambda node, core: 0,
        capacity=lambda node: 1.0,
        incarnation=lambda: 1,
        claims_of=lambda node: (),
        groups_of=lambda node: (),
        claim=lambda added, removed, now: [],
        sign_announcement=lambda core, stamp: b"",
        may_be_core=lambda node: True,
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_made_by_its_name_and_starts_alone(name):
    made = make_strategy(context_of(name))
    assert made.groups() == [MANAGEMENT_GROUP]
    assert made.group_status(MANAGEMENT_GROUP).interested_nodes == (1,)
    assert set(made.core_statuses()) <= {1}
    assert (made.stale_entry_count(), made.drain_entries()) == (0, [])


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        make_strategy(context_of("mash"))
    assert str(caught.value) == f"unknown strategy 'mash'; there is: {', '.join(STRATEGIES)}"


PLAY = """
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.routing import STRATEGIES
from hansa.simulator.actions import ClientPublish, ClientSubscribe, ScheduledAction
from hansa.simulator.options import SimulationOptions
from hansa.simulator.run import simulate
from hansa.simulator.topologies import parse_topology

steps = (
    ScheduledAction(0.0, ClientSubscribe(2, "a/#")),
    ScheduledAction(4.0, ClientPublish(0, "a/b")),
)
for other in STRATEGIES:
    settings = ProtocolSettings(strategy=other)
    result = simulate(SimulationOptions(parse_topology("ring:5", 1), settings, schedule=steps))
    assert (result.delivered, result.violations) == (1, ())
print(*STRATEGIES)
"""


@pytest.mark.pure
@pytest.mark.parametrize("name", STRATEGIES)
def test_without_its_file_and_its_registration_all_others_still_work(name, tmp_path):
    strategy = STRATEGIES[name]
    source = Path(hansa.__file__).parent
    copy = shutil.copytree(source, tmp_path / "hansa", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / Path(getfile(strategy)).relative_to(source)).unlink()
    registry = copy / "protocol" / "routing" / "__init__.py"
    lines = registry.read_text(encoding="utf-8").splitlines()
    registry.write_text("\n".join(line for line in lines if f" {strategy.__name__}" not in line))
    command = [sys.executable, "-P", "-c", PLAY]
    answer = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (answer.stderr, answer.returncode) == ("", 0)
    assert answer.stdout.split() == [other for other in STRATEGIES if other != name]


def test_only_the_mesh_elects_cores():
    assert [name for name in STRATEGIES if elects_cores(name)] == ["mesh"]


def test_nothing_else_knows_a_strategy_by_name_but_the_settings_know_the_default():
    source = Path(hansa.__file__).parent
    named = re.compile("|".join(f"strategy.*[\"']{name}[\"']" for name in STRATEGIES))
    knowing = {
        str(module.relative_to(source)): line.strip()
        for module in source.rglob("*.py")
        if source / "protocol" / "routing" not in module.parents
        for line in module.read_text(encoding="utf-8").splitlines()
        if named.search(line)
    }
    default = ProtocolSettings().strategy
    assert knowing == {"protocol/settings.py": f'strategy: str = "{default}"'}
