"""Actuators: inject faults into agents, brokers and links, remember them, and undo them."""
