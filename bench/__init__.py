"""Benchmarks: one file each. They print counts and ratios; they never fail."""
