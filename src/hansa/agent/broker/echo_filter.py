"""Recognises the agent's own publications when a broker of MQTT 3.1.1 sends them back.

MQTT 3.1.1 has no No Local option, so an injected publication would be captured as if a client had
published it and would circulate for ever. Nothing but topic and payload identifies it, so the
filter *counts*: of the equal publications that arrive, as many are echoes as copies are expected.
If a client publishes the same content at the same time, the filter cannot say which copy is the
echo and need not: the right number is forwarded, and the copies are equal.

The filter also removes the extra copies of a client's publication that several subscriptions match:
MQTT 3.1.1 does not distinguish them, and their number is known.

An echo may never arrive, because a broker drops messages for a slow client. So it is expected for a
limited time; afterwards an equal publication counts as a client's again.
"""

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

ECHO_EXPECTED_S = 10.0
"""Least number of seconds for which an echo is expected; the most is twice as long."""

ECHOES_MAX = 1 << 17
"""Different publications whose echoes are expected at a time."""

_Key = tuple[str, bytes]


class EchoFilter:
    """Expected echoes in two generations; the older generation expires as a whole."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._current: Counter[_Key] = Counter()
        self._previous: Counter[_Key] = Counter()
        self._rotate_at = 0.0
        self.missed_count = 0
        """Echoes that did not arrive in time."""

    @property
    def is_full(self) -> bool:
        """Whether no more should be published before some echoes have arrived or expired."""
        self._rotate_if_due()
        return len(self._current) + len(self._previous) >= ECHOES_MAX

    def expect(self, topic: str, payload: bytes, copies: int) -> None:
        """Expect so many copies of a publication."""
        if copies > 0:
            self._rotate_if_due()
            self._current[_key(topic, payload)] += copies

    def consume_echo(self, topic: str, payload: bytes) -> bool:
        """Return whether a publication is an echo; if so, that echo is no longer expected."""
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
