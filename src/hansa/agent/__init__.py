"""The live shell: real brokers, real links and a clock around the nodes of `hansa.protocol`."""
