"""The end of the demo: what just happened as a page, made by Spark from what the agents recorded.

The page is made by the commands that anybody would use, in a process of their own, so that `./run`
installs Spark when it comes to that. Its numbers are held against what the clients counted.
"""

import importlib
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hansa.cli.launcher import program
from hansa.cli.results import table
from hansa.cli.story import Story
from hansa.telemetry import schema
from hansa.telemetry.log import Log, Recorder

SETTINGS = {"HANSA_TELEMETRY_SAMPLE": "all"}
"""What agents need to record everything."""

UNWRITTEN_MAX = 1_000
"""What a killed agent may not have written down: two seconds' worth at 500 a second. It writes
every second, and a busy disk takes its time."""


@dataclass(slots=True)
class Account:
    """What the demo knows by itself: what it did to whom, and what clients got from elsewhere."""

    directory: Path
    """Where the agents keep their records, too."""
    counted: Counter[str] = field(default_factory=Counter)
    """Per broker, publications of other brokers' sensors that its client got."""
    done: dict[str, str] = field(default_factory=dict)
    """Per broker, what was done to it or its agent."""
    faults: int = 0

    def disturb(self, name: str, what: str, node: str) -> None:
        """Note a fault as it strikes; in the tables it stands beside what the agents did then."""
        self.done[name] = f"{self.done.get(name, '')} {what}"
        log = Log(self.directory / "faults")
        self.faults += 1
        recorder = Recorder(
            log, schema.OBSERVER, self.faults
        )  # a life for each: numbers begin anew
        recorder.put(schema.Fault(time.time_ns(), what, int(node, 16)))
        recorder.flush()
        log.close()


def tell(story: Story, account: Account, out: Path) -> bool:
    """Write the page; return whether there is one that agrees with the clients."""
    story.say("\n[bold]The report[/bold], made by Spark from what the agents recorded.")
    lake = account.directory / "lake"
    made = subprocess.run(
        [*program(), "report", "--lake", lake, "--out", out, account.directory], check=False
    )
    if made.returncode != 0:
        story.say("   There is none, see above; with --no-report the demo does without it.")
        return False
    told = _told(lake)
    rows = table("at broker", ">its client got", ">its agent recorded as delivered", "")
    is_good = True
    for name in sorted(account.counted):
        counted, said = account.counted[name], told[name]
        reason = difference(counted, said, account.done.get(name, ""))
        is_good = is_good and reason is not None
        shown = "[red]this should be the same[/red]" if reason is None else reason
        rows.add_row(name, f"{counted:,}", f"{said:,}", shown)
    story.show(rows)
    return is_good


def difference(counted: int, said: int, done: str) -> str | None:
    """Return why the two numbers are as they are, None if nothing that was done explains it.

    A client counts what reaches it. An agent records what it hands to its broker, and writes that
    down once a second.
    """
    if counted == said:
        return "the same"
    if 0 < counted - said <= UNWRITTEN_MAX and "kill agent" in done:
        return f"the {counted - said:,} missing were its last before kill -9, not written down yet"
    if said > counted and "kill broker" in done:
        return f"the {said - counted:,} more were handed to the broker as it was killed"
    return None


def _told(lake: Path) -> Counter[str]:
    """Read deliveries by broker from gold; pyarrow may be new since this process began."""
    importlib.invalidate_caches()
    parquet = importlib.import_module("pyarrow.parquet")
    tables = lake / "tables"
    nodes = parquet.read_table(tables / "silver" / "nodes").to_pylist()
    names = {row["node"]: row["name"] for row in nodes}
    found: Counter[str] = Counter()
    for row in parquet.read_table(tables / "gold" / "traffic_matrix").to_pylist():
        found[names[row["node"]]] += row["publications"]
    return found
