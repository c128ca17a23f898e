"""Guaranteed delivery, the live part: disk and handshakes around `hansa.protocol.delivery.state`.

What clients here publish at QoS 1 and 2 goes through `capture` into a journal (`keeping`); what
other nodes owe this one goes through a journal of its own (`backlog`) and `injection` into the
broker. Both ways keep one rule: a record is durable before anybody is told what it says.
"""
