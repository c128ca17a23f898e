"""An MQTT 3.1.1 and 5 client: pure, without clock, socket, randomness or log.

`packet_reader` turns bytes into packets, `packet_writer` packets into bytes, and `connection` is
the state machine of one connection to one broker. A shell carries the bytes. Unlike most client
libraries it never acknowledges, never chooses the packet id of a publication and never resends on
its own: the owner of the journal requests all three, because only the journal knows what is on
disk. The package knows nothing of the federation and does not trust the broker.
"""
