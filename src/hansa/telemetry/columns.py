"""The columns of the table that holds all telemetry records: type and meaning of each."""

from typing import Literal

ColumnType = Literal["node", "nodes", "integer", "real", "text"]
"""A node id is an unsigned 64-bit integer, which many programs cannot represent: tables show it as
16 hexadecimal digits. An integer has at most 63 bits."""

KEY_COLUMNS: dict[str, tuple[ColumnType, str]] = {
    "node_id": (
        "node",
        "Node that wrote the record; `ffffffffffffffff` for a fault injector or test clients.",
    ),
    "incarnation": ("integer", "Incarnation of that node when it started to write."),
    "record_sequence": (
        "integer",
        "Counts the records of one incarnation from 1; a missing number is a dropped record.",
    ),
    "kind": ("text", "Kind of record."),
}
"""Columns of every row that are not fields of the record."""

FIELD_COLUMNS: dict[str, tuple[ColumnType, str]] = {
    "time_ns": (
        "integer",
        "Nanoseconds: since 1970 by the clock of the machine, in a simulation since its start.",
    ),
    "origin_id": ("node", "Node whose client published."),
    "epoch": (
        "integer",
        "Identifies a publication together with `origin_id`, `sequence` and whether `qos` is 0: at"
        " QoS 0 the origin's incarnation, at QoS 1 and 2 the epoch of its journal.",
    ),
    "sequence": ("integer", "Number of the publication within its epoch."),
    "qos": ("integer", "Quality of service, 0 to 2."),
    "topic": ("text", "Topic of the publication."),
    "payload_bytes": ("integer", "Size of the payload."),
    "frame_bytes": ("integer", "Size of the frame on the link, without the length prefix."),
    "hops": ("integer", "Links crossed so far, this one included."),
    "peer_id": (
        "node",
        "The other node: a neighbour (empty before its hello), or the node that became reachable"
        " or unreachable.",
    ),
    "reason": ("text", "Why."),
    "count": ("integer", "How many."),
    "first_sequence": ("integer", "First `sequence` of a range."),
    "last_sequence": ("integer", "Last `sequence` of a range."),
    "frame": ("text", "Kind of control frame."),
    "core_id": ("node", "Core of a group."),
    "announcement_sequence": ("integer", "Number of a core announcement."),
    "distance": ("integer", "Hops to the core; 4294967295 if it is unreachable."),
    "core_incarnation": ("integer", "Incarnation of the core that made the announcement."),
    "group": ("text", "Filter that names a group; empty for the group of all nodes."),
    "parent_ids": ("nodes", "Neighbours on a shortest path to the core."),
    "gained_parent_ids": ("nodes", "Parents that were not parents before."),
    "lost_parent_ids": ("nodes", "Former parents."),
    "interest_version": ("text", "Version of this node's interest."),
    "new_incarnation": ("integer", "Incarnation with which the node continues."),
    "rtt_ms": ("real", "Round-trip time in milliseconds."),
    "counter_name": ("text", "Name of a counter."),
    "value": ("real", "Value of a counter since the node started."),
    "node_name": ("text", "Configured name of the node."),
    "hansa_version": ("text", "Version of Hansa."),
    "disturbance": (
        "text",
        "Injected fault, as written in the scripts of the simulator, chaos or demo.",
    ),
    "target_id": (
        "node",
        "Node that a fault was injected at, or one of two; node whose clients counted.",
    ),
    "seconds": ("real", "Duration."),
    "seed": ("integer", "Seed of the simulation."),
    "topology": ("text", "Topology of the simulation, such as `grid:3x3`."),
    "strategy": ("text", "Routing strategy."),
    "published": ("integer", "Publications that a client should have received."),
    "arrived": ("integer", "Publications that it received at least once."),
    "duplicates": ("integer", "Further copies that it received."),
    "interruption_s": ("real", "How long deliveries were interrupted."),
    "security_event": ("text", "Kind of security event."),
    "address": ("text", "Address that a peer or a request came from."),
    "alarm": ("text", "Name of an alarm."),
}
"""Every field of every kind, in the order of a table's columns."""

COLUMNS: dict[str, tuple[ColumnType, str]] = KEY_COLUMNS | FIELD_COLUMNS
