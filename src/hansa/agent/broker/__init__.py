"""What the agent knows about its own broker: one observer per way of learning who wants what.

An observer is a pure state machine: the shell subscribes for it, hands it what arrives with the
time, and carries its changes to the node. None of them knows a socket, a clock or the federation.
"""
