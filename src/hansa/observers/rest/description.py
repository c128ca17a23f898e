"""Descriptions of HTTP APIs that list subscriptions: which request, and what its answer means.

Users can describe further brokers in `[rest.custom]`, with the same fields.
"""

import re
from dataclasses import dataclass

from hansa.errors import UsageError

SYNTAXES = ("mqtt", "nats", "amqp")
PAGINGS = ("none", "page", "offset")
CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A request whose answer lists subscriptions.

    Fields of rows are names separated by dots. A field that a row does not have is looked up in the
    object that contains the row, and so on outwards.
    """

    path: str = ""
    """Path and query of the request, below the URL."""
    rows: str = ""
    """Names that lead to the list of rows, separated by dots; lists on the way are walked through.
    Empty: the answer itself is the list."""
    client: str = ""
    """Field with the client id."""
    client_pattern: str = ""
    """Regular expression with one group, the client id; rows whose client field does not match are
    skipped. Empty: the whole field."""
    client_optional: bool = False
    """Whether rows without a client id count; otherwise the answer is refused."""
    client_is_hash: bool = False
    """Whether the client id is given as NATS hashes it."""
    filter: str = ""
    """Field with the topic filter."""
    filter_prefix: str = ""
    """Prefix to remove from the filter; rows without it are skipped."""
    syntax: str = "mqtt"
    """Wildcards and separators of the filter: mqtt, nats or amqp."""
    share: str = ""
    """Field with the group of a shared subscription, if the filter does not contain it."""
    only: str = ""
    """Field that decides whether a row counts."""
    only_pattern: str = ""
    """Regular expression that this field must match; a missing one is an empty text."""
    total: str = ""
    """Field of the answer with the number of all items of the outermost list. An answer with
    another number is refused. Empty: the list ends with an empty page."""
    paging: str = "none"
    """none: everything in one answer; page: pages are numbered from 1; offset: by their first
    item."""
    page_parameter: str = "page"
    """Parameter of the query for the page or the offset."""
    limit_parameter: str = "limit"
    """Parameter of the query for the number of items; empty: none."""
    limit: int = 1_000
    """Items to request at once; the broker may send fewer. Without paging, an answer with so many
    is taken for cut off."""


DESCRIPTIONS: dict[str, tuple[ListRequest, ...]] = {
    # Connections list the subscriptions of connected clients. Those of others are visible as
    # consumers without a connection, named <hash of the client id>_<number>; a restart of NATS
    # leaves those of clean sessions behind. "x/#" also is a second subscription "x fwc".
    "nats": (
        ListRequest(
            path="/jsz?accounts=1&consumers=1&config=1",
            rows="account_details.stream_detail.consumer_detail",
            client="config.durable_name",
            client_pattern="([0-9A-Za-z]*)(?:_.*)?",
            client_optional=True,
            client_is_hash=True,
            filter="config.filter_subject",
            filter_prefix="$MQTT.msgs.",
            syntax="nats",
            only="push_bound",
            only_pattern="(false)?",
            limit_parameter="",
        ),
        ListRequest(
            path="/connz?subs=detail",
            rows="connections.subscriptions_list_detail",
            client="mqtt_client",
            client_optional=True,
            filter="subject",
            syntax="nats",
            share="qgroup",
            only="sid",
            only_pattern="(?!.* fwc$).*",
            total="total",
            paging="offset",
            page_parameter="offset",
        ),
    ),
    # Bindings of the default virtual host from the exchange of MQTT to the queues of clients.
    "rabbitmq": (
        ListRequest(
            path="/api/exchanges/%2F/amq.topic/bindings/source",
            client="destination",
            client_pattern="mqtt-subscription-(.*)qos[01]",
            filter="routing_key",
            syntax="amqp",
            limit_parameter="",
        ),
    ),
    "rmqtt": (
        ListRequest(
            path="/api/v1/subscriptions",
            client="clientid",
            filter="topic",
            share="opts.group",
            limit_parameter="_limit",
            limit=10_000,
        ),
    ),
    "emqx": (
        ListRequest(
            path="/api/v5/subscriptions",
            rows="data",
            client="clientid",
            filter="topic",
            total="meta.count",
            paging="page",
        ),
    ),
    "nanomq": (
        ListRequest(
            path="/api/v4/subscriptions",
            rows="data",
            client="clientid",
            filter="topic",
            limit_parameter="",
        ),
    ),
}


def check_request(request: ListRequest, place: str) -> None:
    """Raise UsageError for a description that cannot work."""
    if not request.path.startswith("/"):
        raise UsageError(f"{place} path must begin with /, not {request.path!r}")
    for name in ("client", "filter"):
        if not getattr(request, name):
            raise UsageError(f"{place} {name} is missing: the field of a row with it")
    for name, value, known in (
        ("syntax", request.syntax, SYNTAXES),
        ("paging", request.paging, PAGINGS),
    ):
        if value not in known:
            raise UsageError(f"{place} {name} must be one of {', '.join(known)}, not {value!r}")
    if request.limit < 1:
        raise UsageError(f"{place} limit must be at least 1, not {request.limit}")
    for name in ("client_pattern", "only_pattern"):
        try:
            pattern = re.compile(getattr(request, name))
        except re.error as error:
            raise UsageError(f"{place} {name}: {error}") from error
        if name == "client_pattern" and pattern.pattern and pattern.groups != 1:
            raise UsageError(f"{place} client_pattern must have one group, the client id")
