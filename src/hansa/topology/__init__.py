"""Who should be linked with whom: pure functions over graphs; no clock, socket or storage."""
