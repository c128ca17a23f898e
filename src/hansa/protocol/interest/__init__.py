"""Which node is interested in which topics, and since when every other node acts on it."""
