"""Hansa: a self-organising federation of unmodified MQTT brokers.

`protocol` is a pure state machine; a shell (`agent` or `simulator`) performs its effects; `cli` is
the command line. Imports only go down the tree: docs/architecture.md.
"""

from hansa import compiled_core

__version__ = "0.2.0"

compiled_core.enable()
