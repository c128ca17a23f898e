"""The screen of `hansa top`: what it shows for a federation, a size and some keys.

Nothing here reads a clock or a terminal. A node that was seen once stays on the screen with its
name, also if the asked agent forgets it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.cells import set_cell_size
from rich.text import Text

from hansa.console.federation import (
    CAPTURED,
    INJECTED,
    Federation,
    NodeInfo,
    shown_names,
    sorted_links,
)
from hansa.console.node_answers import NodeSummary

NODES_MAX = 10_000
"""Nodes that are remembered."""

KEYS = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\t": "tab",
}
"""Bytes of keys that are not single characters."""

HELP = "q quit  tab view  ←→ sort by  r reverse  ↑↓ PgUp PgDn scroll"

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Column:
    title: str
    width: int
    is_number: bool = True


@dataclass(frozen=True)
class Row:
    cells: Cells
    keys: tuple[float | str, ...]
    """Values by which rows are sorted, one per column."""
    style: str = ""


@dataclass(frozen=True)
class FederationSample:
    """The federation at one time."""

    at: float
    federation: Federation


def split_keys(data: bytes) -> list[str]:
    """Return the names of the keys in terminal input; unknown sequences are skipped."""
    keys = []
    while data:
        found = next((name for name in KEYS if data.startswith(name)), None)
        if found is not None:
            keys.append(KEYS[found])
            data = data[len(found) :]
        elif data.startswith(b"\x1b"):
            data = data[1:].lstrip(b"[O0123456789;")[1:]
        else:
            keys.append(chr(data[0]))
            data = data[1:]
    return keys


@dataclass
class TopScreen:
    """Samples, and what the operator chose to see."""

    interval_s: float
    view: int = 0
    sort: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    """The column by which each view is sorted."""
    is_reversed: bool = False
    offset: int = 0
    problem: str = ""
    """Why there is no newer sample."""
    samples: list[FederationSample] = field(default_factory=list)
    """The last two."""
    known: dict[str, NodeInfo] = field(default_factory=dict)

    def add(self, at: float, federation: Federation) -> None:
        """Take a new sample."""
        self.problem = ""
        for node in federation.nodes:
            if node.id in self.known or len(self.known) < NODES_MAX:
                self.known[node.id] = node
        self.samples = [*self.samples[-1:], FederationSample(at, federation)]

    def press(self, key: str, height: int) -> bool:
        """Apply a key; return whether to quit."""
        page = max(1, height - 4)
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
        if key == "q":
            return True
        if key in moves:
            self.offset = max(0, self.offset + moves[key])
        elif key in ("home", "g"):
            self.offset = 0
        elif key in ("end", "G"):
            self.offset = 1 << 30  # `lines` limits it
        elif key in ("tab", "v"):
            self.view, self.offset = (self.view + 1) % len(VIEWS), 0
        elif key in ("left", "right", "<", ">"):
            count = len(VIEWS[self.view].columns)
            step = 1 if key in ("right", ">") else -1
            self.sort[self.view] = (self.sort[self.view] + step) % count
        elif key == "r":
            self.is_reversed = not self.is_reversed
        return False

    def lines(self, width: int, height: int) -> list[Text]:
        """Return the screen: at most `height` lines of at most `width` cells."""
        view = VIEWS[self.view]
        chosen = self.sort[self.view]
        rows = sorted(view.rows(self), key=lambda row: str(row.keys[0]))  # equal ones by name
        rows.sort(key=lambda row: row.keys[chosen], reverse=self._is_descending())
        room = max(1, height - 3)
        self.offset = max(0, min(self.offset, len(rows) - room))
        shown = rows[self.offset : self.offset + room]
        last = self.offset + len(shown)
        place = f"{self.offset + 1}-{last} of {len(rows)}" if len(rows) > room else f"{len(rows)}"
        return [
            _line(self._headline(view.title, place), width, "bold red" if self.problem else "bold"),
            _line(self._titles(view.columns), width, "reverse"),
            *(_line(_cells(view.columns, row.cells), width, row.style) for row in shown),
            *(Text() for _ in range(room - len(shown))),
            _line(HELP, width, "dim"),
        ]

    def _headline(self, title: str, place: str) -> str:
        if self.problem:
            return f"{title} {place}  {self.problem}"
        down = sum(1 for node in self.nodes() if node.state != "up")
        alarms = sum(len(node.problems()) for node in self.nodes())
        return (
            f"{title} {place}  {len(self.known)} nodes, {down} not up, {alarms} alarms  every"
            f" {self.interval_s:g} s"
        )

    def _titles(self, columns: tuple[Column, ...]) -> str:
        marked = self.sort[self.view]
        arrow = "▼" if self._is_descending() else "▲"
        titles = [
            f"{column.title}{arrow}" if at == marked else column.title
            for at, column in enumerate(columns)
        ]
        return _cells(columns, tuple(titles))

    def _is_descending(self) -> bool:
        column = VIEWS[self.view].columns[self.sort[self.view]]
        return column.is_number != self.is_reversed

    # ------------------------------------------------------------ rates

    def nodes(self) -> list[NodeInfo]:
        """Return all nodes that were ever seen, as they are now."""
        now = {node.id: node for node in self.samples[-1].federation.nodes} if self.samples else {}
        return [now.get(node_id) or _forgotten(node) for node_id, node in self.known.items()]

    def rate(self, value: Callable[[NodeSummary], int], node: str) -> float:
        """Return the growth of a counter of a node per second; 0 until there are two samples. A
        smaller value means a restarted agent."""
        if len(self.samples) < 2:
            return 0.0
        old, new = (sample.federation.summaries().get(node) for sample in self.samples)
        seconds = self.samples[1].at - self.samples[0].at
        if old is None or new is None or seconds <= 0:
            return 0.0
        before, after = value(old), value(new)
        return (after - before if after >= before else after) / seconds


def _forgotten(node: NodeInfo) -> NodeInfo:
    return NodeInfo(node.id, node.name, reachable=False, problem="forgotten by the asked agent")


def shown_rate(value: float) -> str:
    """Return a rate in at most six characters."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _line(text: str, width: int, style: str) -> Text:
    return Text(set_cell_size(text, width), style, no_wrap=True, overflow="crop")


def _cells(columns: tuple[Column, ...], cells: Cells) -> str:
    parts = []
    for column, cell in zip(columns, cells, strict=True):
        if column.is_number:
            parts.append(cell[: column.width].rjust(column.width))
        else:
            parts.append(set_cell_size(cell, column.width))
    return " ".join(parts)


# ---------------------------------------------------------------- views


@dataclass(frozen=True)
class View:
    title: str
    columns: tuple[Column, ...]
    rows: Callable[[TopScreen], list[Row]]


def _node_rows(screen: TopScreen) -> list[Row]:
    rows = []
    names = _names(screen)
    for node in screen.nodes():
        summary = node.summary
        numbers = [
            screen.rate(lambda each: each.counters.get(CAPTURED, 0), node.id),
            screen.rate(lambda each: each.counters.get(INJECTED, 0), node.id),
            screen.rate(lambda each: sum(n.bytes_in for n in each.neighbours.values()), node.id),
            screen.rate(lambda each: sum(n.bytes_out for n in each.neighbours.values()), node.id),
            float(sum(summary.delivery.pending.values())) if summary else 0.0,
            screen.rate(lambda each: each.dropped, node.id),
            float(len(node.problems())),
        ]
        cells = tuple("" if summary is None else shown_rate(number) for number in numbers)
        style = "red" if node.state != "up" else "yellow" if numbers[-1] else ""
        name = names[node.id]
        rows.append(Row((name, node.state, *cells), (name, node.state, *numbers), style))
    return rows


def _link_rows(screen: TopScreen) -> list[Row]:
    if not screen.samples:
        return []
    federation, names = screen.samples[-1].federation, _names(screen)
    rows = []
    for link in sorted_links(federation):
        numbers = [
            link.rtt_ms,
            screen.rate(_bytes_out(link.b), link.a),
            screen.rate(_bytes_out(link.a), link.b),
            screen.rate(_dropped(link.b), link.a) + screen.rate(_dropped(link.a), link.b),
        ]
        ends = names[link.a], names[link.b]
        style = "" if link.state == "up" else "red"
        round_trip = "down" if link.lost else f"{link.rtt_ms:.2f}"
        cells = (round_trip, *map(shown_rate, numbers[1:]))
        rows.append(Row((*ends, *cells), (*ends, *numbers), style))
    return rows


def _bytes_out(to: str) -> Callable[[NodeSummary], int]:
    return lambda each: each.neighbours[to].bytes_out if to in each.neighbours else 0


def _dropped(to: str) -> Callable[[NodeSummary], int]:
    return lambda each: each.neighbours[to].dropped if to in each.neighbours else 0


def _counter_rows(screen: TopScreen) -> list[Row]:
    summaries = screen.samples[-1].federation.summaries() if screen.samples else {}
    names = _names(screen)
    rows = []
    for counter in sorted({name for each in summaries.values() for name in each.counters}):
        counts = {node: each.counters.get(counter, 0) for node, each in summaries.items()}
        rate = sum(screen.rate(lambda each, c=counter: each.counters.get(c, 0), n) for n in counts)  # type: ignore[misc]
        most = shown_names((max(counts, key=lambda node: counts[node]),), names)
        total = sum(counts.values())
        rows.append(
            Row((counter, shown_rate(rate), shown_rate(total), most), (counter, rate, total, most))
        )
    return rows


def _alarm_rows(screen: TopScreen) -> list[Row]:
    names = _names(screen)
    return [
        Row((names[node.id], text), (names[node.id], text), "red")
        for node in screen.nodes()
        for text in ([] if node.reachable else [f"{node.state}: {node.problem}"]) + node.problems()
    ]


def _names(screen: TopScreen) -> Mapping[str, str]:
    return Federation("", tuple(screen.known.values()), ()).names()


VIEWS = (
    View(
        "Nodes",
        (
            Column("NODE", 17, is_number=False),
            Column("STATE", 11, is_number=False),
            Column("IN/s", 6),
            Column("OUT/s", 6),
            Column("RX B/s", 7),
            Column("TX B/s", 7),
            Column("PEND", 6),
            Column("DROP/s", 7),
            Column("ALM", 4),
        ),
        _node_rows,
    ),
    View(
        "Links",
        (
            Column("NODE", 20, is_number=False),
            Column("NODE", 20, is_number=False),
            Column("RTT ms", 8),
            Column("→ B/s", 8),
            Column("← B/s", 8),
            Column("DROP/s", 8),
        ),
        _link_rows,
    ),
    View(
        "Counters",
        (
            Column("COUNTER", 44, is_number=False),
            Column("PER s", 8),
            Column("TOTAL", 8),
            Column("MOST AT", 16, is_number=False),
        ),
        _counter_rows,
    ),
    View(
        "Alarms",
        (Column("NODE", 16, is_number=False), Column("ALARM", 200, is_number=False)),
        _alarm_rows,
    ),
)
