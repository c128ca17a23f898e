"""What a federation did, as rows: one schema, one log for every shell; docs/telemetry.md."""
