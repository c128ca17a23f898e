"""What the agent published itself and the broker is going to send back: MQTT 3.1.1 has no No Local.

Without it a publication that was injected would be captured as if a client had published it, and
go round for ever. It has no name here but its topic and payload, so echoes are *counted*: of those
that arrive, as many are ours as copies are due; the others are somebody's. When a client publishes
the very same at the same time nobody can say which one is the echo, and nobody needs to: the right
number crosses, and they are equal.

So are the other copies of a client's publication that several subscriptions of ours match: 3.1.1
does not tell them apart, and their number is known.

An echo can fail to come, because a broker drops what a slow client does not read. So it is expected
for a while only; then a client's equal publication is taken for its own again.
"""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

ECHO_EXPECTED_S = 10.0
"""Seconds for which an echo is expected at least; at most it is twice as long."""

ECHOES_MAX = 1 << 17
"""Different publications whose echoes are expected at a time."""

_Key = tuple[str, bytes]


class EchoFilter:
    """The echoes that are due, in two generations: the older one is forgotten as a whole."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Expect nothing."""
        self._clock = clock
        self._current: Counter[_Key] = Counter()
        self._previous: Counter[_Key] = Counter()
        self._rotate_at = 0.0
        self.missed_count = 0
        """How many did not come in time."""

    @property
    def is_full(self) -> bool:
        """Whether so many are due that nothing more should be published before some have come."""
        self._rotate_if_due()
        return len(self._current) + len(self._previous) >= ECHOES_MAX

    def expect(self, topic: str, payload: bytes, copies: int) -> None:
        """Something was published that comes back so many times."""
        if copies > 0:
            self._rotate_if_due()
            self._current[_key(topic, payload)] += copies

    def consume_echo(self, topic: str, payload: bytes) -> bool:
        """Whether something that arrived is an echo; that one is then no longer due."""
        self._rotate_if_due()
        if not self._current and not self._previous:
            return False
        key = _key(topic, payload)
        for generation in (self._previous, self._current):
            if key in generation:
                generation[key] -= 1
                if not generation[key]:
                    del generation[key]
                return True
        return False

    def _rotate_if_due(self) -> None:
        late = self._clock() - self._rotate_at
        if late < 0:
            return
        if late >= ECHO_EXPECTED_S:
            self._rotate()
        self._rotate()
        self._rotate_at = self._clock() + ECHO_EXPECTED_S

    def _rotate(self) -> None:
        self.missed_count += self._previous.total()
        self._previous, self._current = self._current, Counter()


def _key(topic: str, payload: bytes) -> _Key:
    return topic, blake2b(payload, digest_size=16).digest()
