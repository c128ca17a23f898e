"""Links between agents: how frames travel."""
