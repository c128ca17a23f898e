"""QoS 1 and 2 at one node: publications pending for others, and from others."""
