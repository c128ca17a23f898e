"""Runs the benchmarks: all of them, or those named on the command line."""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import (
    forwarding,
    journal,
    live_antonielli,
    live_bevilaqua,
    live_delay,
    live_durable,
    live_fanout,
    live_healing,
    live_large,
    live_links,
    live_locality,
    live_manager,
    live_neighbours,
    live_papers,
    live_recording,
    live_soak,
    live_throughput,
    memory,
    mqtt_codec,
    pipeline,
    simulation_scale,
    steady_control,
    sweep,
    telemetry,
)

QUESTIONS: dict[str, Callable[[], dict[str, object]]] = {
    "forwarding": forwarding.measure,
    "mqtt-codec": mqtt_codec.measure,
    "journal": journal.measure,
    "telemetry": telemetry.measure,
    "memory": memory.measure,
    "steady-control": steady_control.measure,
    "simulation-scale": simulation_scale.measure,
    "pipeline": pipeline.measure,
    "sweep": sweep.measure,
    "live-throughput": live_throughput.measure,
    "live-delay": live_delay.measure,
    "live-fanout": live_fanout.measure,
    "live-durable": live_durable.measure,
    "live-recording": live_recording.measure,
    "live-links": live_links.measure,
    "live-large": live_large.measure,
    "live-locality": live_locality.measure,
    "live-neighbours": live_neighbours.measure,
    "live-papers": live_papers.measure,
    "live-antonielli": live_antonielli.measure,
    "live-bevilaqua": live_bevilaqua.measure,
    "live-manager": live_manager.measure,
    "live-healing": live_healing.measure,
    "live-soak": live_soak.measure,
}
TAKES_LONG = (
    "pipeline",
    "sweep",
    "live-papers",
    "live-antonielli",
    "live-bevilaqua",
    "live-manager",
    "live-healing",
    "live-soak",
)
"""Questions that are only asked by name."""


def main() -> int:
    """Ask the questions, print the answers, and keep them if asked to."""
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("question", nargs="*", help=f"which ones: {', '.join(QUESTIONS)}")
    parser.add_argument(
        "--runs", type=int, default=10, metavar="N", help="live-healing: runs per fault (10)"
    )
    parser.add_argument(
        "--minutes", type=int, default=10, metavar="N", help="live-soak: how long it runs (10)"
    )
    parser.add_argument("--json", type=Path, help="also write the answers to this file")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.question if name not in QUESTIONS]
    if unknown:
        sys.stderr.write(f"hansa: no question {unknown[0]!r}; there are {', '.join(QUESTIONS)}\n")
        return 2
    answers: dict[str, dict[str, object]] = {}
    questions: dict[str, Callable[[], dict[str, object]]] = {
        **QUESTIONS,
        "live-healing": partial(live_healing.measure, arguments.runs),
        "live-soak": partial(live_soak.measure, arguments.minutes),
    }
    for name in arguments.question or (name for name in QUESTIONS if name not in TAKES_LONG):
        sys.stdout.write(f"\n{name}: {QUESTIONS[name].__doc__}\n")
        sys.stdout.flush()
        answers[name] = questions[name]()
    if arguments.json:
        arguments.json.write_text(json.dumps(answers, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
