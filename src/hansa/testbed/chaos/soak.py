"""A soak: hours of live load in pieces, one scenario each, with one account of all publications.

Every piece is a run of `hansa chaos` with a new federation, and one line of a ledger. Scenarios
take turns, so that all kinds of faults occur, and the number of a piece is its seed.
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hansa import __version__
from hansa.source_digest import source_commit, source_digest
from hansa.testbed.chaos.faults.runner import do_nothing
from hansa.testbed.chaos.run import ChaosOutcome, ChaosRun, run_chaos
from hansa.testbed.chaos.scenarios import SCENARIOS

SOAK_SCENARIOS = tuple(
    name for name, scenario in SCENARIOS.items() if scenario.fault is not do_nothing
)


@dataclass(frozen=True, slots=True)
class SoakPiece:
    """One line of the ledger."""

    number: int
    """Also its seed."""
    scenario: str
    topology: str
    seconds: float
    rate: float
    version: str
    commit: str | None
    """None if Hansa does not run from a checkout."""
    code: str
    """Digest of the sources of agents and testbed."""
    took_s: float
    drained_s: float | None
    faults: dict[str, int]
    """Injected faults by kind."""
    published: int
    acknowledged: int
    fates: dict[str, int]
    """Pairs of publication and subscriber, by the words of `ChaosVerdict.fates`."""
    duplicates: tuple[int, int, int]
    """Second and further deliveries at QoS 0, 1 and 2."""
    unexplained: tuple[int, int, int]
    """Of these, the ones that no fault allows."""
    inversions: int
    phantoms: int
    violations: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """The arguments of `hansa chaos` that repeat it."""
        run = ("--topology", self.topology, "--seed", str(self.number))
        load = ("--seconds", f"{self.seconds:g}", "--rate", f"{self.rate:g}")
        return [self.scenario, *run, *load]


@dataclass(slots=True)
class SoakAccount:
    """The sum of all pieces."""

    pieces: int = 0
    failed: int = 0
    published: int = 0
    acknowledged: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    duplicates: list[int] = field(default_factory=lambda: [0, 0, 0])
    unexplained: list[int] = field(default_factory=lambda: [0, 0, 0])
    inversions: int = 0
    phantoms: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0

    def add(self, piece: SoakPiece) -> None:
        self.pieces += 1
        self.failed += bool(piece.violations)
        self.published += piece.published
        self.acknowledged += piece.acknowledged
        self.fates.update(piece.fates)
        for qos in range(3):
            self.duplicates[qos] += piece.duplicates[qos]
            self.unexplained[qos] += piece.unexplained[qos]
        self.inversions += piece.inversions
        self.phantoms += piece.phantoms
        self.faults.update(piece.faults)
        self.took_s += piece.took_s


def soak_code() -> str:
    """Return the digest of the sources of everything that runs in a piece."""
    return source_digest("hansa.cli.agent", "hansa.testbed.chaos.soak")


class Soak:
    """The pieces so far, and which one comes next."""

    def __init__(
        self,
        messages: int,
        scenarios: Sequence[str],
        template: ChaosRun,
        known: Iterable[SoakPiece] = (),
    ) -> None:
        """Run until `messages` were published. `template` has the topology and load of all pieces;
        `known` are the rows of a ledger, of which those of other code do not count."""
        self.messages = messages
        self.code = soak_code()
        self.pieces = [piece for piece in known if piece.code == self.code]
        self._scenarios = scenarios
        self._template = template

    @property
    def published(self) -> int:
        return sum(piece.published for piece in self.pieces)

    def next_run(self) -> ChaosRun | None:
        """Return the next piece, whose seed is its number; None if the soak is complete."""
        if self.published >= self.messages:
            return None
        number = len(self.pieces)
        scenario = SCENARIOS[self._scenarios[number % len(self._scenarios)]]
        return replace(self._template, scenario=scenario, seed=number)

    async def run_piece(self, chaos_run: ChaosRun, failed: Path) -> SoakPiece:
        """Run a piece; return its row. The events of one that breaks a promise are kept in the
        directory `failed`."""
        began = time.monotonic()
        with TemporaryDirectory(prefix="hansa-soak-") as temporary:
            history = Path(temporary, f"{chaos_run.seed}-{chaos_run.scenario.name}.jsonl")
            outcome = await run_chaos(chaos_run, history=history)
            piece = self.add(chaos_run, outcome, time.monotonic() - began)
            if piece.violations:
                failed.mkdir(exist_ok=True)
                shutil.move(history, failed / history.name)
        return piece

    def add(self, chaos_run: ChaosRun, outcome: ChaosOutcome, took_s: float) -> SoakPiece:
        """Add the outcome of a run; return its row."""
        verdict = outcome.verdict
        piece = SoakPiece(
            number=chaos_run.seed,
            scenario=chaos_run.scenario.name,
            topology=chaos_run.topology,
            seconds=chaos_run.seconds,
            rate=chaos_run.rate,
            version=__version__,
            commit=source_commit(),
            code=self.code,
            took_s=round(took_s, 1),
            drained_s=None if outcome.drained_s is None else round(outcome.drained_s, 1),
            faults=dict(outcome.fault_counts),
            published=verdict.published,
            acknowledged=verdict.acknowledged,
            fates=dict(verdict.fates),
            duplicates=_by_qos(verdict.duplicate_count(qos) for qos in range(3)),
            unexplained=_by_qos(verdict.unexplained[qos] for qos in range(3)),
            inversions=verdict.inversions,
            phantoms=verdict.phantoms,
            violations=tuple(outcome.violations),
        )
        self.pieces.append(piece)
        return piece

    @property
    def failed(self) -> list[SoakPiece]:
        return [piece for piece in self.pieces if piece.violations]

    def account(self) -> SoakAccount:
        account = SoakAccount()
        for piece in self.pieces:
            account.add(piece)
        return account


def _by_qos(counts: Iterable[int]) -> tuple[int, int, int]:
    qos0, qos1, qos2 = counts
    return qos0, qos1, qos2
