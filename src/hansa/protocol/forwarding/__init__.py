"""The path of every publication: forwarding table, engine, duplicate filter."""
