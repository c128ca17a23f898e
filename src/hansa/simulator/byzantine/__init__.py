"""A compromised member: runs the real node, and lies (docs/threat-model.md).

It has a valid key, so it is a member like any other. It reads every frame on its links, drops and
alters those that it should forward, and sends frames that its node would not send. Everything it
does follows from the seed.
"""
