"""The choices that a journal leaves open, with what each of them costs."""

from dataclasses import dataclass

from hansa.errors import UsageError


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How a journal is cut into files, and how long they stay."""

    segment_bytes: int = 32 << 20
    """Bytes after which a segment ends. Opening reads the last segment whole, which takes about
    1 s for this much in records of 100 bytes; retention drops whole segments."""
    segment_seconds: float = 3_600.0
    """Seconds after which the next append begins a new segment, whatever the size."""
    retention_seconds: float = 7 * 86_400.0
    """Seconds that a segment stays after its end. How long a partition may last without loss."""
    retention_bytes: int = 4 << 30
    """Bytes of all segments together; the oldest go first, the one being written stays."""
    unsynced_bytes_max: int = 16 << 20
    """Bytes that may wait for the disk before `Writer.offer` refuses more."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("segment_bytes", "retention_bytes", "unsynced_bytes_max"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be at least 1")
        for name in ("segment_seconds", "retention_seconds"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}, it must be above 0")
        if self.retention_bytes < self.segment_bytes:
            raise UsageError(
                f"retention_bytes is {self.retention_bytes}, it must not be below segment_bytes, "
                f"{self.segment_bytes}"
            )
