"""The examples of docs/telemetry.md work."""

import re
import tomllib
from pathlib import Path

from hansa.agent.settings import load_settings
from hansa.simulator.options import Phases, SimulationOptions
from hansa.simulator.run import simulate
from hansa.simulator.topologies import parse_topology

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SETTINGS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_reading_example_counts_records(tmp_path):
    simulate(
        SimulationOptions(parse_topology("line:2", 1), phases=Phases(warm_up_s=2.0)),
        telemetry=tmp_path,
    )
    names: dict[str, object] = {}
    for example in EXAMPLES:
        exec(compile(example, "docs/telemetry.md", "exec"), names)  # noqa: S102
    count_kinds = names["count_kinds"]
    assert callable(count_kinds)
    counts = count_kinds(tmp_path)
    assert (counts["simulation_started"], counts["node_started"], counts["link_up"]) == (1, 2, 2)


def test_settings_examples_load(tmp_path):
    for text in SETTINGS:
        assert tomllib.loads(text)
        (tmp_path / "node.toml").write_text(text)
        load_settings(tmp_path / "node.toml", {})
