"""The hands that break links. What is broken is remembered, so that all of it can be mended."""

from collections.abc import Iterable

from hansa.testbed.chaos.fault_effects import Harm
from hansa.testbed.datagram_relay import DatagramRelay
from hansa.testbed.federation import LocalFederation
from hansa.testbed.link_conditions import BOTH, Direction, Line
from hansa.testbed.relay import Relay

NARROW = 8_000.0
"""Bytes per second: 64 kbit/s."""


class Links:
    """All links of a federation; each goes through a relay."""

    def __init__(self, federation: LocalFederation, harm: Harm) -> None:
        """Break nothing yet."""
        self._federation = federation
        self._harm = harm
        self._broken: set[tuple[int, int]] = set()
        self._lines: dict[tuple[int, int], Line] = {}

    @property
    def all(self) -> list[tuple[int, int]]:
        """Who is linked to whom."""
        return list(self._federation.topology.links)

    def cut(self, a: int, b: int) -> None:
        """Let nothing pass between two neighbours, and tell nobody."""
        self._harm.note("silence", a, b)
        self._broken.add((a, b))
        self._federation.cut(a, b)

    def swallow(self, a: int, b: int, directions: Iterable[Direction] = BOTH) -> None:
        """Let nothing pass, one way or both; who dials anew hears nothing either."""
        self._harm.note("black-hole", a, b)
        self._broken.add((a, b))
        self._stream(a, b).cut(directions, refuses=False)

    def reset(self, a: int, b: int) -> None:
        """Break the connection off; both ends are told by RST."""
        self._harm.note("reset", a, b)
        self._stream(a, b).reset()

    def strand(self, a: int, b: int) -> None:
        """Break the connection off, and tell only the end that dialled."""
        self._harm.note("half-open", a, b)
        self._stream(a, b).strand()

    def worsen(self, a: int, b: int, line: Line) -> None:
        """Make a link longer, narrower or less sure."""
        self._harm.note("worsen", a, b)
        relay = self._federation.relay(a, b)
        self._lines.setdefault((a, b), relay.line)
        relay.line = line

    def restore(self, a: int, b: int) -> None:
        """Undo `worsen`, if nobody has."""
        if (a, b) in self._lines:
            self._harm.mended("restore", a, b)
            self._federation.relay(a, b).line = self._lines.pop((a, b))

    def mend(self, a: int, b: int) -> None:
        """Undo `cut` and `swallow`."""
        self._harm.mended("mend", a, b)
        self._broken.discard((a, b))
        self._federation.mend(a, b)

    def part(self, side: set[int], bridge: int | None = None) -> None:
        """Cut all links between these nodes and the others, but for those of one that may stay the
        bridge between them."""
        for a, b in self.all:
            if (a in side) != (b in side) and bridge not in (a, b):
                self.cut(a, b)

    def heal(self) -> None:
        """Undo everything."""
        for a, b in list(self._broken):
            self.mend(a, b)
        for a, b in list(self._lines):
            self.restore(a, b)

    def _stream(self, a: int, b: int) -> Relay:
        relay = self._federation.relay(a, b)
        assert not isinstance(relay, DatagramRelay), "datagrams have no connection to break"
        return relay
