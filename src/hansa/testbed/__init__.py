"""Live federations on this machine, for tests and demonstration: real brokers, real agents."""
