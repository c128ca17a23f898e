"""Links beyond the configured neighbours: assigned by a manager, or chosen by the agent."""
