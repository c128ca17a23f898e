"""Retained values: versions, comparison between nodes, checks of what a broker stores."""
