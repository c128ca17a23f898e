"""The section `[telemetry]` of an agent's settings, with the cost of each choice."""

from dataclasses import dataclass
from pathlib import Path

from hansa.agent.exposure import is_loopback
from hansa.agent.http_client import parse_server_url
from hansa.errors import UsageError
from hansa.journal.settings import JournalSettings

TELEMETRY_DIRECTORY = "telemetry"
"""Directory of telemetry in the state directory."""

SAMPLE_RATE_MAX = 65_536
"""The last 16 bits of a sequence number decide whether a publication is sampled."""

NAMED_RATES = {"off": 0, "none": 0, "all": 1}


class SampleRate(str):
    """Which publications are sampled: `off`, `none`, `all`, or a number n for one in n."""

    def __new__(cls, value: object) -> "SampleRate":
        """Parse a setting; raise ValueError if it is invalid."""
        text = str(value)
        is_number = text.isascii() and text.isdecimal() and 0 < int(text) <= SAMPLE_RATE_MAX
        if text not in NAMED_RATES and not is_number:
            raise ValueError(text)
        return super().__new__(cls, text)

    @property
    def one_in(self) -> int:
        """Sample one in so many; 0: none."""
        return NAMED_RATES[self] if self in NAMED_RATES else int(self)


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Telemetry for `hansa pipeline` and other readers."""

    sample: SampleRate = SampleRate("off")
    """off writes nothing at all; none records links, control and counters; all, or a number n
    for one in n, also publications: the same ones at every node."""
    directory: str = ""
    """Directory; `telemetry` in the state directory if empty."""
    retention_seconds: float = 7 * 86_400.0
    """Seconds that records are kept."""
    retention_bytes: int = 256 << 20
    """Bytes that are kept; the oldest are dropped first."""
    otlp: str = ""
    """URL of an OpenTelemetry collector that gets spans of the sampled publications, such as
    `http://127.0.0.1:4318`; plain HTTP only on this machine. Empty: none. Every node of a trace
    needs it, and the same `sample`."""

    def __post_init__(self) -> None:
        self.journal_settings()
        if self.otlp:
            self._check_otlp()

    def _check_otlp(self) -> None:
        parts = parse_server_url("[telemetry] otlp", self.otlp)
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise UsageError(
                f"[telemetry] otlp {self.otlp!r} would send topics in plain text to another"
                " machine: use https, or a collector on this machine"
            )
        if not self.sample.one_in:
            raise UsageError(
                f'[telemetry] otlp needs sampled publications, but sample is "{self.sample}":'
                ' set sample = "all", or a number n for one in n'
            )

    @property
    def is_enabled(self) -> bool:
        """Whether anything is written."""
        return self.sample != "off"

    def path(self, state: Path) -> Path:
        """Return the directory of the log, given the state directory."""
        return Path(self.directory) if self.directory else state / TELEMETRY_DIRECTORY

    def journal_settings(self) -> JournalSettings:
        if self.retention_bytes < 1:
            raise UsageError(f"retention_bytes must be at least 1, not {self.retention_bytes}")
        return JournalSettings(
            segment_bytes=min(16 << 20, max(1, self.retention_bytes // 4)),
            retention_seconds=self.retention_seconds,
            retention_bytes=self.retention_bytes,
        )
