"""Files of the state directory besides the journals: identity, peers, leases, connect marker.

Each file is written whole and replaced atomically. While the disk is full, the agent raises an
alarm and tries again; the event loop never waits for a file.
"""
