"""Resident memory of a live agent without an open page."""

import asyncio
from pathlib import Path

from bench.console import say
from bench.live import federation, open_load, pids_of
from bench.live_tls import PROFILES

LOAD_S = 5.0
KINDS = {
    "Rss": "resident",
    "Pss": "proportional share",
    "Private": "its own pages",
}


def measure() -> dict[str, object]:
    """Memory of a live agent, idle and after the most QoS 0 messages (goal 40 MB resident)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    answers: dict[str, object] = {}
    for links, profile in PROFILES.items():
        async with federation("line:2", profile) as running:
            ports = [node.broker.port for node in running.nodes]
            agent = pids_of(running)["agent 0"]  # it captures
            found = {"idle": memory_mb(agent)}
            with open_load(ports[0], [ports[1]]) as load:
                await asyncio.to_thread(load.flood, LOAD_S)
                found["after load"] = memory_mb(agent)
        for moment, sizes in found.items():
            for kind, meaning in KINDS.items():
                say(f"{links} links, {moment}: {meaning}", f"{sizes[kind]:8.1f} MB")
                answers[f"{links}_{moment.replace(' ', '_')}_{kind}_mb"] = round(sizes[kind], 1)
    return answers


def memory_mb(process: int) -> dict[str, float]:
    """Return the kinds of resident memory of a process."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return {"Rss": sizes["Rss"], "Pss": sizes["Pss"], "Private": private}
