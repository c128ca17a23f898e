"""Links between agents: transports for frames, and the manager of all links."""
