"""Faults of a simulation: random faults, churn, links made by a manager."""
