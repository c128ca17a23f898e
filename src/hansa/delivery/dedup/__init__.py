"""Inbound de-duplication: a publication that the broker sends more than once is captured once.

The broker sends a publication to the agent again for four reasons, and each has its own filter:

    redelivery (`redelivery`)
        The broker did not get our acknowledgement. Same packet id, on a later connection.
    overlap (`overlap`)
        Several filters of the agent match. One copy per filter, each with its own packet id, one
        after another on one connection.
    reconnect overlap (`reconnect_overlap`)
        As before, but the connection was lost between two copies.
    echo (`echo`)
        The agent published it itself, and MQTT 3.1.1 has no No Local option.

A packet id does not identify a publication, because brokers reuse packet ids. The filters therefore
compare content, the DUP flag and the order of packet ids. Where a redelivery is indistinguishable
from a new publication with equal content, QoS 1 is captured again: a duplicate is allowed, a loss
is not. The exception are brokers that reuse free packet ids at once, until `PacketIdOrder` knows.

A redelivery:

    PUBLISH 7 "x"        captured; PUBACK 7 is lost
    (new connection)
    PUBLISH 7 "x" DUP    redelivery: PUBACK 7, not captured
    PUBLISH 7 "y" DUP    another publication: the broker reused the packet id

An overlap copy after a reconnect. A broker first resumes what was in flight: QoS 2 handshakes
(PUBREL), then unacknowledged publications (DUP), in order.

    PUBLISH 7 "x" of filter 1         captured; PUBREC 7
    PUBLISH 8 "x" of filter 2         in transit when the connection ends
    (new connection or incarnation)
    PUBREL 7                          resumed
    PUBLISH 8 "x" of filter 2, DUP    overlap copy of 7: PUBREC 8, not captured
    PUBLISH 9 "x" of filter 1         a new publication with equal content

`history` restores this knowledge from the journal after a restart and combines both filters.
"""
