"""Analysis of a simulation: the true state, convergence, traffic, transcript, telemetry."""
