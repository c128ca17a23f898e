"""What a link on this machine is like. Whoever carries its bytes asks, so it may change at will."""

import math
from dataclasses import dataclass
from enum import Enum


class Direction(Enum):
    """Which way bytes go."""

    OUT = "from who dials"
    BACK = "to who dials"


BOTH_DIRECTIONS = tuple(Direction)


@dataclass(slots=True)
class LinkConditions:
    """Its length and its quality."""

    delay_s: float = 0.0
    """Each way."""
    jitter_s: float = 0.0
    """Up to so much more, by chance. A stream keeps its order, datagrams do not."""
    bytes_per_s: float = math.inf
    """How much a stream carries each way."""
    loss: float = 0.0
    """Probability that a datagram is lost; streams lose nothing."""
    duplicate: float = 0.0
    """Probability that a datagram comes twice."""
