"""The durable log of an agent: segments, records, recovery, readers. See docs/journal.md."""
