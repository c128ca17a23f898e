"""The HTTP endpoints of an agent: documents, streams and commands."""
