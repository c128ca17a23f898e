"""Telemetry and recorded messages of an agent, and the endpoints that serve them."""
