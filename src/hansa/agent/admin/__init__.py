"""The HTTP endpoints of an agent: the server, the status document and the metrics."""
