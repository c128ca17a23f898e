"""`hansa up`: run a federation of real brokers and agents on this machine."""

import argparse
import asyncio
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hansa.agent.links.settings import TRANSPORTS
from hansa.cli.arguments import (
    Parser,
    decimal_number,
    one_of,
    path,
    seed,
    telemetry_sample,
    whole_number,
)
from hansa.errors import UsageError
from hansa.launcher import command_line
from hansa.printable import printable
from hansa.protocol.routing import STRATEGIES
from hansa.simulator.topologies import TOPOLOGY_EXAMPLES as TOPOLOGIES
from hansa.simulator.topologies import parse_topology
from hansa.testbed.cancellation import STOP_SIGNALS
from hansa.testbed.federation import LinkProfile, LocalFederation
from hansa.testbed.managed_federation import ManagedFederation
from hansa.testbed.ready_file import ReadyFile

EXAMPLES = """\
  hansa up ring:3                                three brokers in a ring, on free ports
  hansa up grid:3x3 --ready-file up.json         the papers' grid; other programs read up.json
  hansa up line:5 --link-delay 20 --redundancy 1 every link takes 20 ms each way
  hansa up ring:3 --link udp --link-loss 0.1     UDP links that lose one datagram in ten
  hansa up ring:3 --keep run-1 --telemetry all   with telemetry in run-1
  hansa up ring:9 --manager                      nine nodes that join through a topology manager
  hansa up grid:3x3 --link mqtt                  links through the brokers, as in Spohn 2021
"""

NODES_MAX = 100
"""Limit of nodes: an agent takes about 30 MB, and the start of a broker a core."""


def run(arguments: list[str]) -> int:
    """Run a federation until Ctrl-C or SIGTERM."""
    given = _parser().parse_args(arguments)
    settings = _settings(given)
    topology = parse_topology(given.topology, given.seed)
    if topology.nodes > NODES_MAX:
        raise UsageError(
            f"{topology.name}: {topology.nodes} nodes are {2 * topology.nodes} processes;"
            f" at most {NODES_MAX} nodes run live, more in `{command_line('simulate')}`"
        )
    ready_file = None if given.ready_file is None else ReadyFile(given.ready_file)
    links = LinkProfile(given.transport, given.link_delay / 1000, given.link_loss)

    def make_federation() -> LocalFederation:
        if given.manager:
            shared = {} if given.redundancy is None else {"FED_REDUNDANCY": str(given.redundancy)}
            return ManagedFederation(topology.nodes, settings, shared, given.base_port, given.keep)
        return LocalFederation(topology, settings, given.base_port, links, directory=given.keep)

    return asyncio.run(_run(make_federation, ready_file))


def _settings(given: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables of all agents; raise UsageError for contradictions."""
    settings: dict[str, str] = {}
    if given.redundancy is not None:
        settings["HANSA_PROTOCOL_REDUNDANCY"] = str(given.redundancy)
    if given.strategy is not None:
        settings["HANSA_PROTOCOL_STRATEGY"] = given.strategy
    if given.telemetry is not None:
        settings["HANSA_TELEMETRY_SAMPLE"] = given.telemetry
    if given.record is not None:
        settings["HANSA_RECORD"] = ",".join(given.record)
    if given.keep is None and (given.telemetry or given.record):
        raise UsageError("--telemetry and --record need --keep DIR: else the files are deleted")
    if given.link_loss and given.transport != "udp":
        raise UsageError("--link-loss needs --link udp: other transports lose nothing")
    if given.manager and (given.transport != "tcp" or given.link_delay or given.link_loss):
        raise UsageError("--manager excludes --link, --link-delay and --link-loss")
    return settings


def _parser() -> Parser:
    parser = Parser(
        "hansa up", "Start a federation of real Mosquittos and agents on this machine.", EXAMPLES
    )
    parser.add_argument("topology", help=f"such as {' '.join(TOPOLOGIES.values())}")
    parser.add_argument("--seed", type=seed, default=1, help="for random topologies (default 1)")
    parser.add_argument(
        "--base-port",
        type=whole_number(1_024, 65_000),
        metavar="PORT",
        help="first of three ports per node: broker, link, admin (default: free ports)",
    )
    parser.add_argument(
        "--manager",
        action="store_true",
        help="let a topology manager plan the links; only the size of the topology counts",
    )
    parser.add_argument(
        "--strategy",
        type=one_of(STRATEGIES),
        metavar="NAME",
        help=f"routing strategy: {', '.join(STRATEGIES)}",
    )
    parser.add_argument(
        "--redundancy",
        type=whole_number(1, 16, "parents"),
        metavar="N",
        help="parents per mesh member (default 2)",
    )
    parser.add_argument(
        "--link",
        "--transport",
        dest="transport",
        type=one_of(TRANSPORTS),
        default="tcp",
        metavar="NAME",
        help="transport of links: tcp, udp, or mqtt, through the brokers (default tcp)",
    )
    parser.add_argument(
        "--link-loss",
        type=decimal_number(0, 0.9, "(a probability)"),
        default=0.0,
        metavar="P",
        help="probability from 0 to 0.9 that a datagram is lost (default 0); for udp",
    )
    parser.add_argument(
        "--link-delay",
        type=decimal_number(0, 60_000, "ms"),
        default=0.0,
        metavar="MS",
        help="delay of every link in milliseconds, each way (default 0)",
    )
    parser.add_argument(
        "--keep",
        type=path,
        metavar="DIR",
        help="keep everything in DIR, one directory per node: state, logs, journals, telemetry",
    )
    parser.add_argument(
        "--telemetry",
        type=telemetry_sample,
        metavar="none|all|N",
        help="write telemetry of all agents; of publications none, all or 1 in N",
    )
    parser.add_argument(
        "--record",
        action="append",
        metavar="FILTER",
        help="record the publications of clients that match; may be repeated",
    )
    parser.add_argument(
        "--ready-file",
        type=path,
        metavar="PATH",
        help="write addresses and process ids as JSON after convergence; removed at the end",
    )
    return parser


async def _run(make_federation: Callable[[], LocalFederation], ready_file: ReadyFile | None) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    # It makes a directory, so it must come after the signal handlers, which have it removed.
    federation = make_federation()
    console = Console()
    starting = asyncio.create_task(_start(federation, console))
    stopping = asyncio.create_task(stop.wait())
    watching: list[asyncio.Task[None]] = []
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _show(federation, console)
            if ready_file is not None:
                ready_file.write(federation.describe())
            watching = [
                asyncio.create_task(
                    node.watch_exits(lambda text: console.print(text, soft_wrap=True))
                )
                for node in federation.nodes
            ]
        await stopping
    finally:
        tasks = [starting, stopping, *watching]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # `starting` must start nothing more
        await federation.stop()
        if ready_file is not None:
            ready_file.remove()
    return 0


async def _start(federation: LocalFederation, console: Console) -> None:
    count = len(federation.nodes)
    console.print(f"{federation.topology.name}: starting {count} brokers and {count} agents")
    with console.status("") as progress:
        await federation.start()
        seconds = await federation.wait_until_converged(
            on_progress=lambda waiting: progress.update(
                f"{count - len(waiting)} of {count} ready; {escape(printable(waiting[0]))}"
            )
        )
    console.print(f"converged {seconds:.1f} s after the last agent's start")


def _show(federation: LocalFederation, console: Console) -> None:
    table = Table("node", "broker", "admin", "links to", box=None, header_style="bold")
    for number, node in enumerate(federation.nodes):
        near = " ".join(map(str, federation.neighbours_of(number)))
        table.add_row(node.name, f"127.0.0.1:{node.broker.port}", node.admin_url, near)
    console.print(table)
    ports = [node.broker.port for node in federation.nodes]
    if isinstance(federation, ManagedFederation):
        console.print(f"\nManager: {federation.manager_url}/docs, or", highlight=False)
        shown = command_line("topology", "show", federation.manager_url)
        console.print(f"  {shown}", highlight=False, soft_wrap=True)
    console.print("\nTry, in two terminals:", highlight=False)
    console.print(f"  mosquitto_sub -p {ports[0]} -t 'plant/#' -v", highlight=False)
    console.print(f"  mosquitto_pub -p {ports[-1]} -t plant/temp -m 21.5", highlight=False)
    console.print(f"The page: {federation.nodes[0].admin_url}/, the same in a terminal:")
    shown = command_line("status", federation.nodes[0].admin_url)
    console.print(f"  {shown}", highlight=False, soft_wrap=True)
    console.print("Ctrl-C stops everything.")
