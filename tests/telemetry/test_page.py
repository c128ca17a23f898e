"""What docs/telemetry.md shows runs."""

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


def test_reading_a_log_as_the_page_does(tmp_path):
    simulate(
        SimulationOptions(parse_topology("line:2", 1), phases=Phases(warm_up_s=2.0)),
        telemetry=tmp_path,
    )
    names: dict[str, object] = {}
    for example in EXAMPLES:
        exec(compile(example, "docs/telemetry.md", "exec"), names)  # noqa: S102
    how_many = names["how_many"]
    assert callable(how_many)
    counts = how_many(tmp_path)
    assert (counts["run"], counts["started"], counts["link_up"]) == (1, 2, 2)


def test_the_settings_on_the_page_load(tmp_path):
    for text in SETTINGS:
        assert tomllib.loads(text)
        (tmp_path / "node.toml").write_text(text)
        load_settings(tmp_path / "node.toml", {})
