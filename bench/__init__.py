"""Benchmarks: one file per question. They print counts and ratios; they never fail."""
