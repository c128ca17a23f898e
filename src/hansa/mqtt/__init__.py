"""MQTT 3.1.1 and 5 as a client speaks it: pure, without clock, socket, chance or log of its own.

`reader` turns bytes into packets, `writer` turns packets into bytes, `session` is one connection
to one broker. A shell carries the bytes. What makes this client different: it never acknowledges,
never chooses the id of a publication and never resends. Whoever owns the journal orders all three,
because only the journal knows what is on disk. Nothing here knows the federation, and the broker is
not trusted.
"""
