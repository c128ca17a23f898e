"""A history with all that a verdict over it needs, and as a file: it can be judged again."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from hansa.errors import UsageError
from hansa.testbed.chaos.history import HistoryEvent
from hansa.testbed.chaos.verdict import ChaosVerdict, FaultContext, judge_history


@dataclass(frozen=True, slots=True)
class EvidenceHeader:
    """The first line."""

    subscribers: dict[str, list[str]]
    """Which topics each was to get."""
    fault_context: FaultContext
    problems: list[str]
    """What broke a promise beside publications."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What clients saw, and what was done meanwhile."""

    header: EvidenceHeader
    events: list[HistoryEvent]

    def judge(self) -> ChaosVerdict:
        """Judge it."""
        return judge_history(self.events, self.header.subscribers, self.header.fault_context)

    def write(self, path: Path) -> None:
        """Write it as lines of JSON, an event each after the first."""
        with path.open("wb") as out:
            for line in (self.header, *self.events):
                out.write(msgspec.json.encode(line) + b"\n")


def read_evidence(path: Path) -> Evidence:
    """Read what was written."""
    event = msgspec.json.Decoder(HistoryEvent)
    try:
        with path.open("rb") as lines:
            preface = msgspec.json.decode(lines.readline(), type=EvidenceHeader)
            return Evidence(preface, [event.decode(line) for line in lines])
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # of msgspec, or no text
        raise UsageError(f"{path} is not what `--history` writes: {error}") from error
