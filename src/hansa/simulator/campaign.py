"""A campaign: the random scenario with many seeds and every strategy, recorded in a ledger.

A seed draws the same topology, links, clients and faults for all strategies. Results count for the
code that made them: after a change of the protocol or the simulator, all seeds have to be played
again.
"""

import gc
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from hansa import __version__
from hansa.errors import UsageError
from hansa.simulator.result import GuaranteeSummary
from hansa.simulator.run import simulate
from hansa.simulator.scenarios.sampling import random_options
from hansa.source_digest import source_commit, source_digest

SEEDS = range(50_000)
"""The seeds of a campaign, unless others are given."""

SEEDS_MAX = 10_000_000


@dataclass(frozen=True, slots=True)
class CampaignCase:
    seed: int
    strategy: str

    @property
    def arguments(self) -> list[str]:
        """The arguments of `hansa simulate` that replay it."""
        return ["--scenario", "random", "--strategy", self.strategy, "--seed", str(self.seed)]


@dataclass(frozen=True, slots=True)
class CampaignRun:
    """One line of the ledger: the result of one case."""

    seed: int
    strategy: str
    version: str
    commit: str | None
    """None if Hansa does not run from a checkout."""
    code: str
    """Digest of the sources that the simulation depends on."""
    violations: tuple[str, ...]
    seconds: float
    """CPU time of the run."""
    fingerprint: str = ""
    """Hash of all events; empty after an internal error."""
    virtual_s: float = 0.0
    faults: int = 0
    publications: int = 0
    promised: int = 0
    """Deliveries that were guaranteed to the end of the run."""
    delivered: int = 0
    """Of these, the ones that were made."""
    reported: int = 0
    """Of these, the ones not made whose loss receiver or origin reported with a valid reason: a
    full journal, or a separation longer than a lease."""

    @property
    def case(self) -> CampaignCase:
        return CampaignCase(self.seed, self.strategy)


@dataclass(slots=True)
class StrategySummary:
    """The runs of one strategy."""

    strategy: str
    runs: int = 0
    failed: int = 0
    faults: int = 0
    publications: int = 0
    promised: int = 0
    delivered: int = 0
    reported: int = 0
    virtual_s: float = 0.0
    seconds: float = 0.0

    def add(self, run: CampaignRun) -> None:
        self.runs += 1
        self.failed += bool(run.violations)
        self.faults += run.faults
        self.publications += run.publications
        self.promised += run.promised
        self.delivered += run.delivered
        self.reported += run.reported
        self.virtual_s += run.virtual_s
        self.seconds += run.seconds


def parse_seeds(text: str) -> range:
    """Parse `FIRST-LAST`; raise UsageError if that is no range of seeds."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise UsageError(f"{text!r} is not a range of seeds; write FIRST-LAST, as in 0-1999")
    seeds = range(int(first), int(last) + 1)
    if len(seeds) > SEEDS_MAX:
        raise UsageError(f"these are {len(seeds)} seeds; a campaign has at most {SEEDS_MAX}")
    return seeds


def campaign_code() -> str:
    """Return the digest of all sources that a run of a campaign depends on."""
    return source_digest("hansa.simulator.run", "hansa.simulator.scenarios.sampling")


def run_case(case: CampaignCase) -> CampaignRun:
    """Play one case. An exception is a result, too: it must not end the campaign."""
    _freeze_modules()
    began = time.process_time()
    try:
        options = random_options(case.seed, case.strategy)
        result = simulate(options)
    except Exception as fault:  # noqa: BLE001 - recorded as a violation
        problem = f"internal error: {type(fault).__name__}: {fault}"
        return _make_run(case, (problem,), time.process_time() - began)
    seconds = time.process_time() - began
    run = _make_run(case, result.violations, seconds, result.guaranteed)
    return replace(
        run,
        fingerprint=result.fingerprint,
        virtual_s=round(result.virtual_s, 3),
        faults=options.faults.total,
        publications=result.publications,
    )


@cache
def _freeze_modules() -> None:
    """Once per process: every run starts with a garbage collection, which need not scan all modules
    each time."""
    gc.collect()
    gc.freeze()


def _make_run(
    case: CampaignCase,
    violations: tuple[str, ...],
    seconds: float,
    guaranteed: GuaranteeSummary | None = None,
) -> CampaignRun:
    return CampaignRun(
        case.seed,
        case.strategy,
        __version__,
        source_commit(),
        campaign_code(),
        violations,
        round(seconds, 3),
        promised=guaranteed.promised if guaranteed else 0,
        delivered=guaranteed.delivered if guaranteed else 0,
        reported=guaranteed.reported if guaranteed else 0,
    )


class Campaign:
    """The cases to play, and the results so far."""

    def __init__(
        self,
        seeds: range,
        strategies: Sequence[str],
        known: Iterable[CampaignRun],
        in_turn: bool = False,
    ) -> None:
        """`known` are the rows of a ledger. Those of other code do not count. If strategies are
        played in turn, each seed is played with one of them only."""
        self.seeds, self.strategies = seeds, strategies
        self.code = campaign_code()
        # Seed by seed, so that all strategies have been played up to about the same seed.
        cases = (
            CampaignCase(seed, strategy)
            for seed in seeds
            for number, strategy in enumerate(strategies)
            if not in_turn or number == seed % len(strategies)
        )
        self._runs: dict[CampaignCase, CampaignRun | None] = dict.fromkeys(cases)
        for run in known:
            if run.code == self.code:
                self.add(run)

    def add(self, run: CampaignRun) -> None:
        """Add a result; one of another campaign in the same ledger is ignored."""
        if run.case in self._runs:
            self._runs[run.case] = run

    @property
    def missing(self) -> list[CampaignCase]:
        return [case for case, run in self._runs.items() if run is None]

    @property
    def runs(self) -> list[CampaignRun]:
        return [run for run in self._runs.values() if run is not None]

    @property
    def failed(self) -> list[CampaignRun]:
        return [run for run in self.runs if run.violations]

    def summaries(self) -> list[StrategySummary]:
        """Return one summary per strategy, and one of all if there are several."""
        total = StrategySummary("all")
        found = {name: StrategySummary(name) for name in self.strategies}
        for run in self.runs:
            found[run.strategy].add(run)
            total.add(run)
        return [*found.values(), *([total] if len(found) > 1 else [])]
