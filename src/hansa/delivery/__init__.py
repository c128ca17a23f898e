"""Guaranteed delivery between one node, its broker and its disk, without any IO.

`DeliveryCore.handle(input, now)` takes what happened (packets of the broker, a completed commit, a
publication of another node, a passed deadline) and returns the effects to perform, in order. The
agent and the simulator are two shells around it: they own sockets or a model broker, files or a
model disk, and the clock.

A record is appended to a log by a call, because that only changes memory. Whether it is durable is
an effect (`Commit`) and an input (`Committed`): nothing that depends on a record leaves before.

    capture      publications of local clients: broker → outbox log → acknowledgement
    injection    publications of other nodes: inbox log → broker
    dedup/       what the broker sends twice is captured once
    subscriptions/  the subscriptions of this node at its broker
"""
