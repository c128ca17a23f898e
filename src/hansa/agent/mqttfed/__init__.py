"""An agent that takes its place among the nodes of the public `mqtt-fed` federator."""
