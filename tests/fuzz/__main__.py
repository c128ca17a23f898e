"""Run a fuzzer: `.venv/bin/python -m tests.fuzz frames --seconds 3600`.

Prints executions, rate and memory every minute. The first exception stops it and prints the seed
of the failing input; `--seed N --seeds 1` repeats that input's run from its start.
"""

import argparse
import random
import resource
import sys
import time

from tests.fuzz.all_targets import TARGETS

REPORT_S = 60.0
INPUTS_PER_SEED = 2_000
"""Inputs of one seed; then the target is made anew, so that a failure can be repeated."""


def fuzz(name: str, seconds: float, first_seed: int = 0, seeds: int | None = None) -> int:
    """Run a target until the time is over; return the number of executions."""
    began = reported = time.monotonic()
    executions, seed = 0, first_seed
    while seeds is None or seed < first_seed + seeds:
        target, rng = TARGETS[name](), random.Random(seed)
        try:
            for number in range(INPUTS_PER_SEED):
                try:
                    target.run(rng)
                except BaseException:
                    sys.stderr.write(f"{name}: seed {seed}, input {number}\n")
                    raise
                executions += 1
                now = time.monotonic()
                if now - began > seconds:
                    return executions
                if now - reported > REPORT_S:
                    reported = now
                    print_report(name, executions, now - began)
        finally:
            target.close()
        seed += 1
    return executions


def print_report(name: str, executions: int, seconds: float) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    text = f"{name}: {executions:,} executions in {seconds:.0f} s, peak memory {peak} MB"
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seeds", type=int, default=None, help="number of seeds; default: no limit"
    )
    args = parser.parse_args()
    start = time.monotonic()
    done = fuzz(args.target, args.seconds, args.seed, args.seeds)
    print_report(args.target, done, time.monotonic() - start)
