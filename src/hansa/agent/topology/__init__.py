"""Whom an agent is linked to when its file does not say: its manager's wishes, and its own."""
