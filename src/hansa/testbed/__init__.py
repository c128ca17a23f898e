"""A whole federation on this machine: real brokers, real agents, to try out and to test."""
