"""Runs the benchmarks: all of them, or those named on the command line."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import (
    areas,
    forwarding,
    growth,
    journal,
    lake_growth,
    lake_update,
    live_antonielli,
    live_bevilaqua,
    live_delay,
    live_durable,
    live_durable_cost,
    live_fanout,
    live_healing,
    live_large,
    live_links,
    live_locality,
    live_manager,
    live_memory,
    live_neighbours,
    live_page,
    live_papers,
    live_proxy,
    live_recording,
    live_soak,
    live_throughput,
    live_tls,
    live_tls_start,
    memory,
    mqtt_codec,
    peers,
    pipeline,
    simulation_scale,
    steady_control,
    sweep,
    telemetry,
)
from bench.conditions import conditions
from bench.console import say

BENCHMARKS: dict[str, Callable[[], dict[str, object]]] = {
    "forwarding": forwarding.measure,
    "mqtt-codec": mqtt_codec.measure,
    "journal": journal.measure,
    "telemetry": telemetry.measure,
    "memory": memory.measure,
    "steady-control": steady_control.measure,
    "simulation-scale": simulation_scale.measure,
    "growth": growth.measure,
    "areas": areas.measure,
    "pipeline": pipeline.measure,
    "lake-growth": lake_growth.measure,
    "lake-update": lake_update.measure,
    "sweep": sweep.measure,
    "peers": peers.measure,
    "live-throughput": live_throughput.measure,
    "live-delay": live_delay.measure,
    "live-tls": live_tls.measure,
    "live-tls-start": live_tls_start.measure,
    "live-fanout": live_fanout.measure,
    "live-fanout-16": live_fanout.measure_16,
    "live-durable": live_durable.measure,
    "live-durable-cost": live_durable_cost.measure,
    "live-recording": live_recording.measure,
    "live-links": live_links.measure,
    "live-large": live_large.measure,
    "live-locality": live_locality.measure,
    "live-neighbours": live_neighbours.measure,
    "live-memory": live_memory.measure,
    "live-page": live_page.measure,
    "live-papers": live_papers.measure,
    "live-proxy": live_proxy.measure,
    "live-antonielli": live_antonielli.measure,
    "live-bevilaqua": live_bevilaqua.measure,
    "live-manager": live_manager.measure,
    "live-healing": live_healing.measure,
    "live-soak": live_soak.measure,
}
BY_NAME_ONLY = (
    "areas",
    "growth",
    "peers",
    "pipeline",
    "lake-growth",
    "lake-update",
    "sweep",
    "live-papers",
    "live-antonielli",
    "live-bevilaqua",
    "live-manager",
    "live-healing",
    "live-soak",
    "live-tls-start",
    "live-fanout-16",
)
"""Benchmarks that run only if they are named."""


def main() -> int:
    """Run the benchmarks, print the results, and save them with `--json`."""
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("benchmark", nargs="*", help=f"which ones: {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--runs", type=int, default=10, metavar="N", help="live-healing: runs per fault (10)"
    )
    parser.add_argument(
        "--minutes", type=int, default=10, metavar="N", help="live-soak: how long it runs (10)"
    )
    parser.add_argument(
        "--nodes-max",
        type=int,
        default=300,
        metavar="N",
        help="growth: the largest federation (300); 1000 takes several minutes",
    )
    parser.add_argument(
        "--pictures", type=Path, metavar="DIRECTORY", help="growth: also draw the curves here"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="peers: duration of each of three rounds of a scenario (1)",
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.benchmark if name not in BENCHMARKS]
    if unknown:
        sys.stderr.write(f"hansa: no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}\n")
        return 2
    found = conditions()
    for what, answer in found.items():
        say(what, answer)
    results: dict[str, dict[str, object]] = {"conditions": {**found}}
    benchmarks: dict[str, Callable[[], dict[str, object]]] = {
        **BENCHMARKS,
        "live-healing": partial(live_healing.measure, arguments.runs),
        "growth": partial(
            growth.measure, nodes_max=arguments.nodes_max, pictures=arguments.pictures
        ),
        "peers": partial(peers.measure, arguments.seconds),
        "live-soak": partial(live_soak.measure, arguments.minutes),
    }
    for name in arguments.benchmark or (name for name in BENCHMARKS if name not in BY_NAME_ONLY):
        sys.stdout.write(f"\n{name}: {BENCHMARKS[name].__doc__}\n")
        sys.stdout.flush()
        results[name] = benchmarks[name]()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
