"""Settings of a journal, with the cost of each."""

from dataclasses import dataclass

from hansa.errors import UsageError


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Size and age of segments, and retention."""

    segment_bytes: int = 32 << 20
    """Bytes after which a new segment starts. Opening reads the last segment whole, about 1 s for
    this size with records of 100 bytes; retention deletes whole segments."""
    segment_seconds: float = 3_600.0
    """Seconds after which the next append starts a new segment, whatever the size."""
    retention_seconds: float = 7 * 86_400.0
    """Seconds for which a segment is kept after its end. A partition without loss lasts no longer
    than this and `interest_lease`."""
    retention_bytes: int = 4 << 30
    """Bytes of all segments together; the oldest are deleted first, the active one is kept."""
    unsynced_bytes_max: int = 16 << 20
    """Bytes that may wait for a commit before `JournalWriter.append_if_room` refuses more."""

    def __post_init__(self) -> None:
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
