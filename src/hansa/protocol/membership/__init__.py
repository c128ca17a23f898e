"""Which nodes exist and which can be reached: the replicated database and the map made from it."""
