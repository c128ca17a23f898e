"""Hansa: a self-organising federation of unmodified MQTT brokers.

The tree is the architecture: `protocol` decides and touches nothing, a shell around it
(`simulator`) performs what it decides, `cli` is what people type. Imports only go down.
"""

__version__ = "0.2.0"
