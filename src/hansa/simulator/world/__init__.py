"""A simulated federation: nodes, brokers, disks and links in virtual time."""
