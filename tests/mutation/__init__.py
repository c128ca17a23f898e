"""Mutation tests of `hansa.delivery`: `.venv/bin/python -m tests.mutation`."""
