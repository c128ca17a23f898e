"""The subscriptions of this node at its own broker: which there are, and which copy counts."""
