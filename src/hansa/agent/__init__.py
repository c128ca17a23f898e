"""The live shell: brokers, links, disks and a clock around a node of `hansa.protocol`."""
