"""`hansa simulate --campaign`: play many seeds with every strategy, and keep a ledger."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from hansa import __version__
from hansa.console.progress import ConsoleProgress
from hansa.console.terminal import console, make_table, say
from hansa.launcher import command_line
from hansa.protocol.routing import STRATEGIES
from hansa.run_ledger import RunLedger, describe_other_code
from hansa.simulator.campaign import SEEDS, Campaign, CampaignRun, parse_seeds, run_case
from hansa.simulator.scenarios.scenario import format_duration
from hansa.simulator.seed_runner import run_as_completed
from hansa.source_digest import source_commit

LEDGER = Path("campaign.jsonl")
FAILURES_SHOWN_MAX = 10
SHOW_INTERVAL_S = 60.0
"""Seconds between two lines of progress if stderr is not a terminal."""


def run(args: argparse.Namespace) -> int:
    """Play the cases that the ledger lacks; exit code 1 if a seed of the campaign has failed."""
    seeds = SEEDS if args.seeds is None else parse_seeds(args.seeds)
    strategies = [args.strategy] if args.strategy else list(STRATEGIES)
    with RunLedger(args.ledger or LEDGER, CampaignRun) as ledger:
        campaign = Campaign(seeds, strategies, ledger.rows, args.in_turn is not None)
        if others := describe_other_code(ledger.rows, campaign.code):
            say(f"{ledger.path} has {others}; they stay, and all seeds are played again")
        session = CampaignSession(len(campaign.missing))
        try:
            with _sigterm_as_interrupt():
                _play(campaign, ledger, session, args.cores)
            is_stopped = False
        except KeyboardInterrupt:
            is_stopped = True
    if args.json:
        print(json.dumps(_summary_json(campaign, session), indent=2))
    else:
        _print_summary(campaign, session)
    if is_stopped:
        print("hansa: stopped; the same command continues", file=sys.stderr)
        return 130
    return 1 if campaign.failed else 0


def _play(
    campaign: Campaign,
    ledger: RunLedger[CampaignRun],
    session: "CampaignSession",
    cores: int | None,
) -> None:
    """Play the missing cases, append them to the ledger and show the progress."""
    interval_s = 1.0 if sys.stderr.isatty() else SHOW_INTERVAL_S
    shown_at = time.monotonic()
    missing = campaign.missing
    with (
        ConsoleProgress(f"{len(missing):,} runs to play") as progress,
        closing(run_as_completed(run_case, missing, cores)) as results,
    ):
        for result in results:
            ledger.append(result)
            campaign.add(result)
            session.add(result)
            if result.violations and session.failed <= FAILURES_SHOWN_MAX:
                progress.warn(_describe_failure(result))
            if time.monotonic() - shown_at >= interval_s:
                shown_at = time.monotonic()
                progress.show(session.describe())


class CampaignSession:
    """The runs of this process: how many, how fast, and how long the others will take."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.finished = self.failed = 0
        self._began = time.monotonic()
        self._ended = self._began

    def add(self, result: CampaignRun) -> None:
        self.finished += 1
        self.failed += bool(result.violations)
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._ended - self._began

    @property
    def rate_per_hour(self) -> float | None:
        return 3600 * self.finished / self.seconds if self.finished else None

    def describe(self) -> str:
        rate = self.rate_per_hour
        if rate is None:
            return f"0 of {self.total:,} runs"
        remaining_s = 3600 * (self.total - self.finished) / rate
        return (
            f"{self.finished:,} of {self.total:,} runs, {self.failed} failed,"
            f" {rate:,.0f} per hour, {format_duration(remaining_s)} left"
        )


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Stop at SIGTERM as at Ctrl-C: the workers would survive this process."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---------------------------------------------------------------- output


def _describe_failure(run: CampaignRun) -> str:
    more = f" and {len(run.violations) - 1} more" if len(run.violations) > 1 else ""
    return (
        f"seed {run.seed}, {run.strategy}: {run.violations[0]}{more}\n"
        f"  replay: {command_line('simulate', *run.case.arguments)}"
    )


def _summary_json(campaign: Campaign, session: CampaignSession) -> dict[str, object]:
    return {
        "version": __version__,
        "commit": source_commit(),
        "code": campaign.code,
        "seeds": [campaign.seeds[0], campaign.seeds[-1]],
        "missing": len(campaign.missing),
        "strategies": [asdict(each) for each in campaign.summaries()],
        "failed": [
            {
                "seed": run.seed,
                "strategy": run.strategy,
                "violations": run.violations,
                "replay": command_line("simulate", *run.case.arguments),
            }
            for run in campaign.failed
        ],
        "session": {
            "runs": session.finished,
            "seconds": round(session.seconds, 3),
            "runs_per_hour": session.rate_per_hour,
        },
    }


def _print_summary(campaign: Campaign, session: CampaignSession) -> None:
    out = console()
    table = make_table(
        *("strategy", ">seeds", ">failed", ">faults", ">publications", ">guaranteed", ">delivered"),
        *(">reported", ">virtual time", ">s per seed"),
    )
    for row in campaign.summaries():
        counts = (row.runs, row.failed, row.faults, row.publications)
        guaranteed = (row.promised, row.delivered, row.reported)
        table.add_row(
            row.strategy,
            *(f"{count:,}" for count in (*counts, *guaranteed)),
            format_duration(row.virtual_s),
            f"{row.seconds / row.runs:.2f}" if row.runs else "",
        )
    out.print(table)
    failed = campaign.failed
    for run in failed[:FAILURES_SHOWN_MAX]:
        out.print(_describe_failure(run), style="red", markup=False, soft_wrap=True)
    if len(failed) > FAILURES_SHOWN_MAX:
        out.print(f"{len(failed) - FAILURES_SHOWN_MAX} more failed; --json has all", style="red")
    first, last = campaign.seeds[0], campaign.seeds[-1]
    missing = f"; {count:,} runs are missing" if (count := len(campaign.missing)) else ""
    out.print(
        f"seeds {first} to {last}, commit {source_commit()}, code {campaign.code}{missing}",
        soft_wrap=True,
    )
    if session.finished:
        out.print(f"played now: {session.describe()}", soft_wrap=True)
