"""The content of CONNECT."""

from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packets import ConnectPacket, Will
from hansa.mqtt.properties import Property as P
from hansa.mqtt.types import Version


def test_connect_contains_all_options():
    will = Will("gone", b"me")
    options = ConnectOptions(
        client_id="me",
        session_expiry=60,
        receive_maximum=100,
        packet_bytes_max=1_000,
        username="user",
        password=b"secret",
        will=will,
    )
    assert options.make_connect_packet() == ConnectPacket(
        "me",
        Version.V5,
        clean_start=False,
        keep_alive=30,
        username="user",
        password=b"secret",
        will=will,
        properties=(
            (P.SESSION_EXPIRY_INTERVAL, 60),
            (P.RECEIVE_MAXIMUM, 100),
            (P.MAXIMUM_PACKET_SIZE, 1_000),
        ),
    )


def test_311_has_no_properties():
    options = ConnectOptions(client_id="me", version=Version.V311, clean_start=True, bridge=True)
    assert options.make_connect_packet() == ConnectPacket(
        "me", Version.V311, keep_alive=30, bridge=True
    )


def test_password_is_not_in_repr():
    assert "secret" not in repr(ConnectOptions(client_id="me", password=b"secret"))
