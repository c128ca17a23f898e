"""The choices of what an agent writes down, with what each of them costs."""

from dataclasses import dataclass
from pathlib import Path

from hansa.errors import UsageError
from hansa.journal.settings import JournalSettings

TELEMETRY_DIRECTORY = "telemetry"
"""The directory of telemetry in the state directory."""

SAMPLE_RATE_MAX = 65_536
"""The last 16 bits of a publication's number decide whether telemetry tells of it."""

NAMED_RATES = {"off": 0, "none": 0, "all": 1}


class SampleRate(str):
    """Of which publications telemetry tells: `off`, `none`, `all`, or a number n for one in n."""

    def __new__(cls, value: object) -> "SampleRate":
        """Read a setting; raise ValueError if it is none."""
        text = str(value)
        is_number = text.isascii() and text.isdecimal() and 0 < int(text) <= SAMPLE_RATE_MAX
        if text not in NAMED_RATES and not is_number:
            raise ValueError(text)
        return super().__new__(cls, text)

    @property
    def one_in(self) -> int:
        """Tell one in so many; 0 is none."""
        return NAMED_RATES[self] if self in NAMED_RATES else int(self)


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What the agent tells of itself, for `hansa pipeline` and anybody else."""

    sample: SampleRate = SampleRate("off")
    """off writes nothing at all; none tells of links, control and counters; all, or a number n for
    one in n, also of publications: the same ones at every node."""
    directory: str = ""
    """Where; `telemetry` in the state directory if empty."""
    retention_seconds: float = 7 * 86_400.0
    """Seconds that it is kept."""
    retention_bytes: int = 256 << 20
    """Bytes of it; the oldest goes first."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        self.journal_settings()

    @property
    def is_enabled(self) -> bool:
        """Whether anything is written."""
        return self.sample != "off"

    def path(self, state: Path) -> Path:
        """Return where the log is, given the state directory."""
        return Path(self.directory) if self.directory else state / TELEMETRY_DIRECTORY

    def journal_settings(self) -> JournalSettings:
        """Return how the log is kept."""
        if self.retention_bytes < 1:
            raise UsageError(f"retention_bytes must be at least 1, not {self.retention_bytes}")
        return JournalSettings(
            segment_bytes=min(16 << 20, max(1, self.retention_bytes // 4)),
            retention_seconds=self.retention_seconds,
            retention_bytes=self.retention_bytes,
        )
