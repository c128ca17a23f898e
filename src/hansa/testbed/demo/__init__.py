"""The demo: a live federation, or a simulated one if no broker is installed."""
