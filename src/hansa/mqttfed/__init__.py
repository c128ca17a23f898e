"""The protocol of the public `mqtt-fed` federator (Ribas 2022), as a node of it speaks it; pure.

docs/mqtt-fed.md says what it can and cannot do. Nothing of Hansa's own protocol is used here.
"""
