"""Probes of a broker, and advice on its configuration: `hansa doctor`."""
