"""Advice on a recorded federation: changes with their effect, predicted and then replayed."""
