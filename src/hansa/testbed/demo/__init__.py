"""The demo: a live federation, or a simulated one where there is no broker."""
