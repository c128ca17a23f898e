"""Clients of a broker with ordinary rights that send what the standard forbids and Mosquitto
accepts."""

import socket

import pytest
from tests.agent.live import Live

from hansa.mqtt.fields import write_text, write_variable_integer

CONNECT = bytes.fromhex("10 0e 00044d515454 05 02 003c 00 0001 7a")
"""MQTT 5, clean start, client id `z`."""

PUBACK = 0x40


def publish_raw(port: int, topic: str, payload: bytes, properties: bytes) -> None:
    """Publish at QoS 1 with properties that no client library would send; wait for the PUBACK."""
    body = write_text(topic) + b"\0\1" + write_variable_integer(len(properties))
    body += properties + payload
    packet = b"\x32" + write_variable_integer(len(body)) + body
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(CONNECT)
        assert client.recv(100)[0] == 0x20
        client.sendall(packet)
        assert client.recv(100)[0] == PUBACK


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("wildcard", b"\x08" + write_text("a/#")),
        ("empty", b"\x08" + write_text("")),
        ("format", b"\x01\x07"),
    ],
)
def test_forbidden_property_stops_no_capture(live: Live, name: str, properties: bytes):
    """The broker sent such a publication again after every connect, and the agent closed the
    connection each time: nothing else was captured any more."""
    topic = f"forbidden/{name}"
    reader = live.subscriber(2, f"{topic}/#")
    live.wait_installed(2, f"{topic}/#")
    publish_raw(live.nodes[0].broker.port, f"{topic}/bad", b"bad", properties)
    live.client(0).publish(f"{topic}/good", b"good")
    received = reader.wait_for_all([b"bad", b"good"])
    assert sorted(received) == [(f"{topic}/bad", b"bad"), (f"{topic}/good", b"good")]
    assert live.nodes[0].status()["broker"]["problem"] == ""  # type: ignore[index]
