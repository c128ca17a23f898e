"""The experiments of the papers as scenarios."""
