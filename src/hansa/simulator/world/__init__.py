"""A simulated federation: nodes, brokers, disks and links on virtual time."""
