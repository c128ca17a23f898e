"""The durable log of one agent: what it captured, injects and owes; see docs/journal.md."""
