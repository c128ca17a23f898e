"""Probes of a live broker, and the advice that follows from them: `hansa doctor`."""
