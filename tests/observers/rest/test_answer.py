"""Answers of HTTP APIs, read as described, or refused."""

import json
from typing import Any

import pytest

from hansa.errors import UsageError
from hansa.observers.rest.answer import (
    InvalidAnswer,
    filter_from_amqp,
    filter_from_nats,
    hash_client_id,
    read_page,
)
from hansa.observers.rest.description import DESCRIPTIONS, ListRequest, check_request

PLAIN = ListRequest("/", client="id", filter="topic")


def read(request: ListRequest, value: object) -> list[tuple[str, str]]:
    page = read_page(request, json.dumps(value).encode())
    return [(each.client, each.topic_filter) for each in page.subscriptions]


def test_every_shipped_description_can_work():
    for name, requests in DESCRIPTIONS.items():
        for request in requests:
            if request.client:
                check_request(request, name)
            else:
                assert request.client_optional


# ---------------------------------------------------------------- shipped descriptions


def test_nats_connections():
    """Recorded at NATS 2.11.9, shortened."""
    connections = [
        {
            "cid": 5,
            "type": "mqtt",
            "subscriptions_list_detail": [
                {"subject": "$MQTT.sub.5e3k", "sid": "$MQTT.sub.5e3k", "cid": 5},
                {"subject": "/.lead./.e./", "sid": "/.lead./.e./", "cid": 5},
                {"subject": "a.b//c.*.>", "sid": "a.b//c.*.>", "cid": 5},
                {"subject": "a.b//c.*", "sid": "a.b//c.* fwc", "cid": 5},
            ],
            "mqtt_client": "one",
        },
        {"cid": 6, "mqtt_client": "without subscriptions"},
        {
            "cid": 7,
            "name": "a native client",
            "subscriptions_list_detail": [{"subject": "n.*", "qgroup": "g", "sid": "1"}],
        },
    ]
    request = DESCRIPTIONS["nats"][1]
    assert read(request, {"total": 3, "connections": connections}) == [
        ("one", "$MQTT/sub/5e3k"),
        ("one", "/lead//e/"),
        ("one", "a/b.c/+/#"),
        ("", "$share/g/n/+"),
    ]


def test_nats_consumers_of_disconnected_sessions():
    """Recorded at NATS 2.11.9, shortened. It omits what is false or empty."""
    consumers = [
        {"config": {"durable_name": "b_1", "filter_subject": "$MQTT.msgs.q"}, "push_bound": True},
        {"config": {"durable_name": "x6g4yNMv_5e3", "filter_subject": "$MQTT.msgs.p.one"}},
        {"config": {"durable_name": "not MQTT", "filter_subject": "orders.>"}},
        {"config": {"filter_subject": "$MQTT.msgs.p.two"}},
    ]
    details = [{"stream_detail": [{"name": "$MQTT_out"}, {"consumer_detail": consumers}]}, {}]
    request = DESCRIPTIONS["nats"][0]
    assert read(request, {"account_details": details}) == [
        (hash_client_id("clean"), "p/one"),
        ("\0", "p/two"),
    ]


def test_rabbitmq_bindings():
    """Recorded at RabbitMQ 3.10.8, shortened."""
    rows = [
        {"destination": "mqtt-subscription-persist qos1xqos1", "routing_key": "deep.*.#"},
        {"destination": "mqtt-subscription-cleanqos0", "routing_key": ".lead..e."},
        {"destination": "another queue", "routing_key": "x"},
    ]
    assert read(DESCRIPTIONS["rabbitmq"][0], rows) == [
        ("persist qos1x", "deep/+/#"),
        ("clean", "/lead//e/"),
    ]


def test_rmqtt_list():
    """Constructed from the source of RMQTT 0.24.0."""
    rows = [
        {"node_id": 0, "clientid": "one", "topic": "a/+", "opts": {"qos": 1}},
        {
            "node_id": 0,
            "clientid": "two",
            "client_addr": "127.0.0.1:5000",
            "topic": "t",
            "opts": {"qos": 2, "no_local": False, "group": "g", "id": 1},
        },
    ]
    found = read(DESCRIPTIONS["rmqtt"][0], rows)
    assert found == [("one", "a/+"), ("two", "$share/g/t")]


def test_emqx_page():
    """Constructed from the documentation of EMQX 5."""
    data = [
        {"node": "emqx@127.0.0.1", "clientid": "one", "topic": "a/+/b", "qos": 1, "nl": 0},
        {"node": "emqx@127.0.0.1", "clientid": "two", "topic": "$share/g/t", "qos": 2, "rh": 0},
    ]
    meta = {"page": 1, "limit": 1000, "count": 2, "hasnext": False}
    found = read(DESCRIPTIONS["emqx"][0], {"data": data, "meta": meta})
    assert found == [("one", "a/+/b"), ("two", "$share/g/t")]


def test_nanomq_list():
    """Constructed from the documentation of NanoMQ."""
    answer = {"code": 0, "data": [{"clientid": "one", "topic": "a/#", "qos": 1}]}
    assert read(DESCRIPTIONS["nanomq"][0], answer) == [("one", "a/#")]


# ---------------------------------------------------------------- refused answers


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "it is not JSON"),
        (b'[{"id": "c", "topic": "a"}', "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"\xff\xfe", "it is not JSON"),
        (b"{}", "it is not a list"),
        (b"null", "it is not a list"),
        (b'["a"]', "a row is not an object"),
        (b'[{"id": "c"}]', "a row has no text 'topic'"),
        (b'[{"id": "c", "topic": 7}]', "a row has no text 'topic'"),
        (b'[{"topic": "a"}]', "a row has no text 'id'"),
        (b'[{"id": null, "topic": "a"}]', "a row has no text 'id'"),
    ],
)
def test_answer_that_is_not_as_described_is_refused(body, reason):
    with pytest.raises(InvalidAnswer) as caught:
        read_page(PLAIN, body)
    assert str(caught.value) == reason


@pytest.mark.parametrize("total", [0, 2, -1, "1", None, True, 1.0])
def test_contradicting_total_is_refused(total):
    request = ListRequest("/", rows="data", client="id", filter="topic", total="count")
    row = {"id": "c", "topic": "a"}
    assert read(request, {"data": [row], "count": 1}) == [("c", "a")]
    with pytest.raises(InvalidAnswer):
        read(request, {"data": [row], "count": total})


def test_share_that_is_no_text_is_refused():
    request = ListRequest("/", client="id", filter="topic", share="share")
    row = {"id": "c", "topic": "a"}
    assert read(request, [row, {**row, "share": "g"}, {**row, "share": None}]) == [
        ("c", "a"),
        ("c", "$share/g/a"),
        ("c", "a"),
    ]
    with pytest.raises(InvalidAnswer, match="'share' of a row is not a text"):
        read(request, [{**row, "share": ["g"]}])


# ---------------------------------------------------------------- syntaxes


@pytest.mark.parametrize(
    ("subject", "topic_filter"),
    [
        ("a.b", "a/b"),
        ("a.*.>", "a/+/#"),
        ("/.a", "/a"),
        ("a./", "a/"),
        ("a./.b", "a//b"),
        ("a//b.c", "a.b/c"),
        (">", "#"),
    ],
)
def test_nats_subject_as_filter(subject, topic_filter):
    assert filter_from_nats(subject) == topic_filter


def test_amqp_key_as_filter():
    assert filter_from_amqp(".a.*..#") == "/a/+//#"


# ---------------------------------------------------------------- custom descriptions


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"path": "subscriptions"}, "path must begin with /"),
        ({"client": ""}, "client is missing"),
        ({"filter": ""}, "filter is missing"),
        ({"syntax": "jms"}, "syntax must be one of mqtt, nats, amqp, not 'jms'"),
        ({"paging": "cursor"}, "paging must be one of none, page, offset, not 'cursor'"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"client_pattern": "("}, "client_pattern: missing"),
        ({"client_pattern": "a"}, "client_pattern must have one group"),
    ],
)
def test_description_that_cannot_work_is_refused(fields, text):
    good: dict[str, Any] = {"path": "/s", "client": "c", "filter": "f"}
    check_request(ListRequest(**good), "[rest.custom]")
    with pytest.raises(UsageError, match=r"^\[rest\.custom\] ") as caught:
        check_request(ListRequest(**{**good, **fields}), "[rest.custom]")
    assert text in str(caught.value)
