"""Starts a program as a service manager does that keeps its port open."""

import socket
import sys
from collections.abc import Sequence

ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""


def activate(command: Sequence[str], listening: socket.socket) -> tuple[list[str], tuple[int]]:
    """Return a command that passes the socket to another one, and the descriptors that it must
    inherit."""
    number = listening.fileno()
    return [sys.executable, "-c", ACTIVATE, str(number), *command], (number,)
