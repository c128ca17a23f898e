"""Mode mqtt-fed: the agent as a node of the public `mqtt-fed` federator."""
