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


@dataclass(slots=True)
class Account:
    """What the demo knows by itself: what it did to whom, and what clients got from elsewhere."""

    directory: Path
    """Where the agents keep their records, too."""
    counted: Counter[str] = field(default_factory=Counter)
    """Per broker, publications of other brokers' sensors that its client got."""
    hurt: set[str] = field(default_factory=set)
    """Brokers that were killed, or whose agent was."""

    def disturb(self, name: str, what: str, node: str) -> None:
        """Note a fault as it strikes; in the tables it stands beside what the agents did then."""
        self.hurt.add(name)
        log = Log(self.directory / "faults")
        recorder = Recorder(log, schema.OBSERVER, len(self.hurt))
        recorder.put(schema.Fault(time.time_ns(), what, int(node, 16)))
        recorder.flush()
        log.close()


def tell(story: Story, account: Account, out: Path) -> bool:
    """Write the page; return whether it agrees with the clients."""
    story.say("\n[bold]The report[/bold], made by Spark from what the agents recorded.")
    lake = account.directory / "lake"
    made = subprocess.run(
        [*program(), "report", "--lake", lake, "--out", out, account.directory], check=False
    )
    if made.returncode != 0:
        story.say("   There is none, see above; the rest of the demo does not need it.")
        return True
    told = _told(lake)
    rows = table("at broker", ">its client counted", ">the tables say", "")
    good = True
    for name in sorted(account.counted):
        counted, said = account.counted[name], told[name]
        good = good and (counted == said or name in account.hurt)
        rows.add_row(name, f"{counted:,}", f"{said:,}", _reason(counted, said, account, name))
    story.show(rows)
    return good


def _reason(counted: int, said: int, account: Account, name: str) -> str:
    if counted == said:
        return "the same"
    if name not in account.hurt:
        return "[red]this should be the same[/red]"
    if said < counted:
        return "kill -9 took the agent's last second of records"
    return "written to the broker that was just killed"


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
