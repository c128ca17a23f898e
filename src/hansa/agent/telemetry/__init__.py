"""What an agent writes down for others to read: telemetry, recorded messages, ranges of both."""
