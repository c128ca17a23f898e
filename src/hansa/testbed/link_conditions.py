"""Conditions of a relayed link; relays read them for every chunk, so they may change any time."""

import math
from dataclasses import dataclass
from enum import Enum


class Direction(Enum):
    OUT = "from the dialler"
    BACK = "to the dialler"


BOTH_DIRECTIONS = tuple(Direction)


@dataclass(slots=True)
class LinkConditions:
    delay_s: float = 0.0
    """In each direction."""
    jitter_s: float = 0.0
    """Largest random addition to the delay. It reorders datagrams, but not streams."""
    bytes_per_s: float = math.inf
    """Bandwidth of a stream in each direction."""
    loss: float = 0.0
    """Probability that a datagram is lost; ignored for streams."""
    duplicate: float = 0.0
    """Probability that a datagram is duplicated."""
