"""Cost of the commands that keep a lake up to date, with the start of Spark."""

import sys
import tempfile
from pathlib import Path

from bench.console import say
from bench.cost import Cost, cost_of_command
from bench.lake_growth import INCREMENTS, MESSAGES, WARM_UP, record_hour

QUERY = "select count(*) from deliveries"


def measure() -> dict[str, object]:
    """A lake by commands: a query of a small one; a million messages, a tenth more, nothing new."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-update-") as directory:
        return _measure(Path(directory))


def _measure(path: Path) -> dict[str, object]:
    costs: dict[str, Cost] = {}

    def report(name: str, *arguments: object) -> None:
        command = [sys.executable, "-m", "hansa.cli", "pipeline", *map(str, arguments)]
        costs[name] = wall_s, cpu_s = cost_of_command(command)
        say(name, f"CPU {cpu_s:6.1f} s   wall {wall_s:6.1f} s")

    source, lake = path / "small-source", path / "small-lake"
    record_hour(source, 0, WARM_UP)
    report("small lake, first run", "run", "--lake", lake, source)
    for turn in ("first", "second", "third"):  # the first may write an archive of classes
        report(f"small lake, {turn} query", "query", "--lake", lake, QUERY)
    report("small lake, nothing new", "run", "--lake", lake, source)

    source, lake = path / "source", path / "lake"
    for number in range(INCREMENTS):
        record_hour(source, number, MESSAGES)
    report("a million messages", "run", "--lake", lake, source)
    record_hour(source, INCREMENTS, MESSAGES)
    report("a tenth more", "run", "--lake", lake, source)
    report("nothing new", "run", "--lake", lake, source)
    ratio = costs["a tenth more"][1] / costs["a million messages"][1]
    say("a tenth more, of the first run", f"{ratio:.2f} by CPU")
    return {
        "tenth_of_first_cpu": round(ratio, 2),
        **{name: [round(wall_s, 1), round(cpu_s, 1)] for name, (wall_s, cpu_s) in costs.items()},
    }
