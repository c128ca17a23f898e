"""Links to neighbours: hello, heartbeat, and order on datagram links."""
