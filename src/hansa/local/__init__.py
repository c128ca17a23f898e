"""A whole federation on this machine: real brokers and real agents, for trying out and for tests."""
