"""`hansa up`: a whole federation of real brokers and agents on this machine."""

import argparse
import asyncio
import json
import signal
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hansa.local.federation import LocalFederation
from hansa.simulator.topologies import parse


def run(arguments: list[str]) -> int:
    """Start it, say where it is, and stop it with Ctrl-C or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="hansa up",
        description="Start a federation of real Mosquittos and agents on this machine.",
        epilog="examples:\n  hansa up ring:3\n  hansa up grid:3x3 --ready-file ready.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "topology", help="ring:N line:N star:N grid:RxC tree:N full:N random:N,DEGREE"
    )
    parser.add_argument("--seed", type=int, default=1, help="for random topologies (default 1)")
    parser.add_argument(
        "--base-port",
        type=int,
        metavar="PORT",
        help="first of three ports per node; free ones if not given",
    )
    parser.add_argument("--redundancy", type=int, metavar="N", help="parents per mesh member")
    parser.add_argument(
        "--ready-file",
        type=Path,
        metavar="PATH",
        help="write where everything is, as JSON, once it has converged",
    )
    given = parser.parse_args(arguments)
    settings: dict[str, str] = {}
    if given.redundancy is not None:
        settings["HANSA_PROTOCOL_REDUNDANCY"] = str(given.redundancy)
    federation = LocalFederation(parse(given.topology, given.seed), settings, given.base_port)
    return asyncio.run(_run(federation, given.ready_file))


async def _run(federation: LocalFederation, ready_file: Path | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    console = Console()
    try:
        starting = asyncio.create_task(_start(federation, console))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _show(federation, console)
            if ready_file is not None:
                nodes = [node.describe() for node in federation.nodes]
                ready_file.write_text(json.dumps({"nodes": nodes}, indent=1) + "\n")
        else:
            starting.cancel()
        await stopping
    finally:
        await federation.stop()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
    return 0


async def _start(federation: LocalFederation, console: Console) -> None:
    count = len(federation.nodes)
    with console.status(f"starting {count} brokers and {count} agents"):
        await federation.start()
        seconds = await federation.wait_until_converged()
    console.print(f"{federation.topology.name}: converged {seconds:.1f} s after the start")


def _show(federation: LocalFederation, console: Console) -> None:
    table = Table("node", "broker", "pages", "links to", box=None, header_style="bold")
    for number, node in enumerate(federation.nodes):
        near = [
            str(b if a == number else a) for a, b in federation.topology.links if number in (a, b)
        ]
        table.add_row(node.name, f"127.0.0.1:{node.mosquitto.port}", node.admin, " ".join(near))
    console.print(table)
    ports = [node.mosquitto.port for node in federation.nodes]
    console.print(f"\nTry:  mosquitto_sub -p {ports[0]} -t 'plant/#' -v")
    console.print(f"      mosquitto_pub -p {ports[-1]} -t plant/temp -m 21.5")
    console.print("Ctrl-C stops everything.")
