"""Guaranteed delivery at one agent: journals and broker handshakes around
`hansa.protocol.delivery`.

    outbound   broker → capture → outbox_journal → node
    inbound    node → inbox_journal → injection → broker

Both directions follow one rule: a record is durable before an acknowledgement depends on it.
"""
