"""Output on a terminal: tables, progress, and the status of agents."""
