"""Frames of the protocol: values, their bytes, and the bounds of what a peer may send."""
