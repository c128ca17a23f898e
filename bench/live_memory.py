"""Resident memory of a live agent without an open page."""

import asyncio
from pathlib import Path

from bench.console import say
from bench.live import federation, open_load, pids_of

LOAD_S = 5.0
KINDS = {"VmRSS": "resident", "RssAnon": "own data", "RssFile": "code, mostly shared by agents"}


def measure() -> dict[str, object]:
    """Memory of a live agent, idle and after the most QoS 0 messages (goal 45 MB resident)."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, object]:
    async with federation("line:2") as running:
        ports = [node.broker.port for node in running.nodes]
        agent = pids_of(running)["agent 0"]  # it captures
        found = {"idle": memory_mb(agent)}
        with open_load(ports[0], [ports[1]]) as load:
            await asyncio.to_thread(load.flood, LOAD_S)
            found["after load"] = memory_mb(agent)
    answers: dict[str, object] = {}
    for moment, sizes in found.items():
        for kind, meaning in KINDS.items():
            say(f"agent, {moment}: {meaning}", f"{sizes[kind]:8.1f} MB")
            answers[f"{moment.replace(' ', '_')}_{kind}_mb"] = round(sizes[kind], 1)
    return answers


def memory_mb(process: int) -> dict[str, float]:
    """Return the kinds of resident memory of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return {kind: int(sizes[kind].split()[0]) / 1024 for kind in KINDS}
