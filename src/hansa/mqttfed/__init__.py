"""The protocol of the public `mqtt-fed` federator (Ribas 2022), for one node; pure.

docs/mqtt-fed.md describes its capabilities and limits. It shares nothing with Hansa's own protocol.
"""
