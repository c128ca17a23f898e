"""The federation protocol: pure state machines that use no clock, socket, randomness or log.

A shell (the live agent or the simulator) passes events to `node.Node` and performs the effects that
it returns. Nothing here imports anything outside the package except `hansa.errors`.
"""
