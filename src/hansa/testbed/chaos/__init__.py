"""Fault injection in a live federation, and a verdict over every publication."""
