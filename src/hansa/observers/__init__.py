"""Observers: which filters the clients of a broker are subscribed to, and whether that is all."""
