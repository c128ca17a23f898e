"""Scenarios: runs with a claim, random runs, and comparisons of strategies."""
