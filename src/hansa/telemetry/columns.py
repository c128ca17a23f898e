"""The columns of the one table that has a row per record: what each means, and its type."""

from typing import Literal

ColumnType = Literal["node", "nodes", "integer", "real", "text"]
"""Of a column. A node id has 64 bits, more than many programs' integers: in tables it is a text of
16 hexadecimal digits. An integer has at most 63."""

KEY_COLUMNS: dict[str, tuple[ColumnType, str]] = {
    "node": ("node", "Who wrote the record; `ffffffffffffffff` for whoever makes faults."),
    "incarnation": ("integer", "The life of that node when it began to write."),
    "number": ("integer", "Counts the records of one life from 1. What is missing was dropped."),
    "kind": ("text", "What happened."),
}
"""Columns of every row that are no fields: who says it, and which of its records it is."""

FIELD_COLUMNS: dict[str, tuple[ColumnType, str]] = {
    "time_ns": (
        "integer",
        "Nanoseconds: since 1970 by the clock of the machine, in a simulation since its start.",
    ),
    "origin": ("node", "Where the publication was published."),
    "life": (
        "integer",
        "With `origin`, `seq` and whether `qos` is 0, the name of a publication: at QoS 0 the "
        "origin's incarnation, at QoS 1 and 2 the epoch of its journal. Of an announcement, the "
        "core's incarnation.",
    ),
    "seq": ("integer", "Number of the publication in that life; of an announcement, its own."),
    "qos": ("integer", "Quality of service, 0 to 2."),
    "topic": ("text", "Where it was published."),
    "payload_bytes": ("integer", "Bytes of what was published."),
    "frame_bytes": ("integer", "Bytes of the frame on the link, without the link's own length."),
    "hops": ("integer", "Links of its way, the one it is sent over included."),
    "peer": (
        "node",
        "The other node: a neighbour, unknown before its hello; or who came or went.",
    ),
    "reason": ("text", "Why."),
    "count": ("integer", "How many."),
    "first": ("integer", "The first of a range of `seq`."),
    "last": ("integer", "The last of it."),
    "frame": ("text", "Kind of control frame."),
    "group": ("text", "The filter that names a group; empty for the group of all nodes."),
    "core": ("node", "The core of a group."),
    "distance": ("integer", "Hops to the core; 4294967295 if there is no way."),
    "parents": ("nodes", "The neighbours that lead to the core."),
    "gained": ("nodes", "Those of them that did not before."),
    "lost": ("nodes", "Those that did, and do no longer."),
    "version": ("text", "Of Hansa; of an interest, its number."),
    "rtt_ms": ("real", "Milliseconds there and back."),
    "what": (
        "text",
        "What was done, in the words of the simulator's, chaos's or the demo's scripts.",
    ),
    "target": ("node", "The node it was done to, or one of two; the node whose clients observed."),
    "name": ("text", "What people call the node; of a counter, what it counts."),
    "value": ("real", "What a counter has come to since the node started."),
    "seed": ("integer", "Of the simulation."),
    "topology": ("text", "Who is linked, as `grid:3x3`."),
    "strategy": ("text", "How publications find their way."),
    "seconds": ("real", "How long it took."),
    "published": ("integer", "Publications that a client should have received."),
    "arrived": ("integer", "How many of them it received at least once."),
    "duplicates": ("integer", "Further copies that it received."),
}
"""Every field of every kind, in the order of a table's columns."""

COLUMNS: dict[str, tuple[ColumnType, str]] = KEY_COLUMNS | FIELD_COLUMNS
"""Type and meaning of every column of the one table that has a row per record."""
