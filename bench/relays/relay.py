"""A minimal relay in Python: the same as relay.c."""

import os
import socket
import sys
import time


def dial(port: str) -> socket.socket:
    for _ in range(5_000):
        try:
            connection = socket.create_connection(("127.0.0.1", int(port)))
        except ConnectionRefusedError:
            time.sleep(0.001)
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    raise ConnectionError(f"nothing listens on port {port}")


def connect_to_broker(port: str, prefix: str) -> socket.socket:
    connection, name = dial(port), f"{prefix}-{os.getpid()}".encode()
    head = bytes((0x10, 12 + len(name), 0, 4, *b"MQTT", 4, 2, 0, 0, 0, len(name)))
    connection.sendall(head + name)
    connection.recv(4, socket.MSG_WAITALL)
    return connection


def main() -> None:
    mode, one, other = sys.argv[1:]
    if mode == "in":
        source, target = connect_to_broker(one, "relay-in"), dial(other)
        source.sendall(bytes((0x82, 6, 0, 1, 0, 1, *b"#", 0)))
        source.recv(5, socket.MSG_WAITALL)
    else:
        listening = socket.create_server(("127.0.0.1", int(one)))
        target = connect_to_broker(other, "relay-out")
        source = listening.accept()[0]
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(1 << 18))
    while count := source.recv_into(buffer):
        target.sendall(buffer[:count])


main()
