"""Analysis of a simulation: ground truth, structure, convergence, telemetry."""
