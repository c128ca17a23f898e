"""The meaning of each column, stored as a comment in the schema of the Delta tables.

A column has one meaning in all tables. Columns of telemetry records are described in
`hansa.telemetry.columns`.
"""

from collections.abc import Collection

from pyspark.sql.types import StructField, StructType

from hansa.telemetry.columns import COLUMNS

COMMENTS: dict[str, str] = {
    **{name: text for name, (_, text) in COLUMNS.items()},
    "run": "`live` for all agents together; each log of a simulation is a run of its own.",
    "hour": "Start of the hour to which the row belongs, in UTC.",
    "time": "`time_ns` as a timestamp.",
    "feed": "Log from which the row was read: node and epoch.",
    "offset": "Position in that log.",
    "guaranteed": "Whether QoS is 1 or 2.",
    "recorded_at": "When the node recorded it, by its clock; in a simulation since 1970.",
    "published_at": "When the origin's agent received the publication, by its clock.",
    "delivered_at": "When it was first passed to this node's broker, by the clock of its agent.",
    "topic_levels": "Levels of the topic.",
    "retain": "Retain flag of the publication.",
    "payload": "Payload as published.",
    "payload_text": "Payload as text; empty if it is not UTF-8.",
    "properties": "Encoded MQTT 5 properties.",
    "content_type": "MQTT 5 content type.",
    "response_topic": "MQTT 5 response topic.",
    "correlation_data": "MQTT 5 correlation data.",
    "expiry_seconds": "MQTT 5 message expiry interval.",
    "user_properties": "MQTT 5 user properties.",
    "sender_id": "Node that sent the frame.",
    "receiver_id": "Node at the other end of the link; empty before its hello.",
    "delivery_count": "How often it was delivered; above 1 if it was repeated.",
    "delay_ms": "Milliseconds from publication to first delivery; empty if the former is unknown.",
    "simulated": "Whether the run is a simulation.",
    "started_at": "Time of the first record.",
    "ended_at": "Time of the last record.",
    "first_at": "Time of the first one.",
    "last_at": "Time of the last one.",
    "stopped": "Whether the node stopped cleanly.",
    "records": "Number of records.",
    "missing": "Records that were written and are not in the lake.",
    "incarnation_count": "Number of incarnations.",
    "newest_incarnation": "Highest incarnation.",
    "present_at_end": "Whether the node belonged to the federation when the recording ended.",
    "established_at_end": "Whether the link was up when the recording ended.",
    "node_a_id": "End of the link with the lower id.",
    "node_b_id": "End of the link with the higher id.",
    "up_count": "How often the link was reported up.",
    "down_count": "How often the link was reported down.",
    "rtt_count": "Number of measured round-trip times.",
    "report": "Newest report of the link.",
    "unreachable_at": "When the peer last became unreachable.",
    "relation": "`interest`, `subscribed_at_broker` or `mesh`.",
    "since": "Begin of the period.",
    "until": "End of the period; empty if it lasted to the end.",
    "lost": "Publications that did not arrive.",
    "deliveries": "Number of deliveries.",
    "measured": "Deliveries whose delay is known.",
    "expected": "Publications in which the node had interest.",
    "delivered": "Expected publications that were delivered.",
    "publications": "Number of publications.",
    "frames": "Number of frames.",
    "bytes": "Number of bytes.",
    "links": "Number of links over which control frames were sent.",
    "received": "Received copies.",
    "contract": "Payload contract that the message does not fulfil.",
    "delay_ms_mean": "Mean of the measured delays, in milliseconds.",
    **{
        f"delay_ms_p{percent}": f"{percent} % of the measured delays are at most this, in ms."
        for percent in (50, 95, 99)
    },
    "delay_ms_max": "Largest measured delay, in milliseconds.",
    "delivered_repeatedly": "Publications that were delivered more than once.",
    "delivered_without_interest": "Deliveries to a node that had no interest at that time.",
    "delivered_ratio": "`delivered` divided by `expected`.",
    "duplicate_bytes": "Bytes of the duplicates.",
    "duplicate_ratio": "`duplicates` divided by `received`.",
    "frames_on_new_links": "Frames over links that came up while the announcement spread.",
    "announced_at": "When the announcement was first sent in this hour.",
    "bound_ratio": "`frames` divided by 2·l, the papers' bound, where l is `links`.",
    "bytes_per_link_second": "`bytes` divided by `links` and `seconds`.",
    "agreed_after_s": "Seconds until all nodes agreed again; only a simulation knows it.",
    "settled_after_s": "Seconds until the last change before one second without changes.",
    "changes": "Changes of membership, interest, cores and links until then.",
    "not_forwarded": "Publications that crossed no link.",
    "hops_mean": "Mean number of links that deliveries crossed.",
    "neighbour_ratio": "Deliveries at direct neighbours divided by `deliveries`.",
    "rank": "Place among the topics of the hour; 1 has the most publications.",
    "copies": "Copies sent over links.",
    "link_bytes": "Bytes of these copies.",
    "messages": "Number of recorded messages.",
    "origins": "Number of nodes at whose brokers they were published.",
}


def describe_columns(schema: StructType, required: Collection[str]) -> StructType:
    """Return a schema with comments; the required columns are NOT NULL."""
    return StructType(
        [
            StructField(
                field.name,
                field.dataType,
                field.name not in required,
                {"comment": COMMENTS[field.name]} if field.name in COMMENTS else {},
            )
            for field in schema
        ]
    )
