"""The federation protocol: pure state machines without clock, socket, chance or log of their own.

A shell (the live agent or the simulator) feeds `node.Node` with events and performs the effects
it returns. Nothing in this package may import anything outside it but `hansa.errors`.
"""
