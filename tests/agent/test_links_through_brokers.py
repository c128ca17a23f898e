"""Live agents linked only through their brokers."""

import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.agent.live import eventually
from tests.agent.process import Process, Scene
from tests.agent.test_broker import certificates, is_installed, local, status

from hansa.testbed.mosquitto import Mosquitto, free_port

__all__ = ["certificates"]  # a fixture


def beside(scene: Scene, broker: Mosquitto, *neighbours: Mosquitto, **settings: Any) -> Process:
    """Start an agent at a broker, linked through the brokers of its neighbours."""
    return scene.agent(
        broker_port=broker.port,
        broker_log_file=broker.log_file,
        link_transport="mqtt",
        link_neighbours=",".join(f"127.0.0.1:{each.port}" for each in neighbours),
        **settings,
    )


def assert_crosses(scene: Scene, publisher: Any, subscriber: Any, agents: list[Process]) -> None:
    """A publication at the first agent's broker arrives at the second's."""
    subscriber.subscribe("t/#")
    eventually(lambda: all(is_installed(agent) for agent in agents), "linked")
    eventually(lambda: is_installed(agents[1], "t/#"), "installed")
    publisher.publish("t/a", b"end")
    assert subscriber.wait_for(b"end") == [("t/a", b"end")]


def test_agent_opens_no_link_port(scene):
    one, two, port = scene.broker(), scene.broker(), free_port()
    agents = [beside(scene, one, link_port=port), beside(scene, two, one)]
    assert_crosses(scene, scene.client(one.port), scene.client(two.port), agents)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert status(agents[0])["link"] == f"mqtt://127.0.0.1:{one.port}"


def passwords(directory: Path, **users: str) -> tuple[str, ...]:
    """Configuration lines for a broker with these users."""
    if shutil.which("mosquitto_passwd") is None:
        pytest.skip("mosquitto_passwd is not installed")
    path = directory / f"passwords-{'-'.join(users)}"
    path.write_text("".join(f"{name}:{password}\n" for name, password in users.items()))
    path.chmod(0o600)
    subprocess.run(["mosquitto_passwd", "-U", str(path)], check=True, capture_output=True)
    return ("allow_anonymous false", f"password_file {path}")


def test_neighbours_broker_requires_credentials(scene, tmp_path):
    strict = scene.broker(*passwords(tmp_path, own="1", guest="2"))
    other = scene.broker()
    first = beside(scene, strict, broker_username="own", broker_password="1")
    stranger = beside(scene, other, strict)
    stranger.says(f"broker 127.0.0.1:{strict.port}: ")
    assert "not authorized" in stranger.log.lower()
    stranger.close()
    second = beside(scene, other, strict, link_mqtt_username="guest", link_mqtt_password="2")
    eventually(lambda: is_installed(first) and is_installed(second), "linked")


def test_link_uses_tls_to_neighbours_broker(scene, certificates):
    lines = (f"certfile {certificates}/b.pem", f"keyfile {certificates}/b.key")
    secure, other = scene.broker(*lines), scene.broker()
    ca = certificates / "ca.pem"
    first = beside(scene, secure, broker_tls="true", broker_tls_ca=ca)
    second = beside(scene, other, secure, link_mqtt_tls="true", link_mqtt_tls_ca=ca)
    eventually(lambda: is_installed(first) and is_installed(second), "linked")
    wrong = certificates / "other.pem"
    beside(scene, scene.broker(), secure, link_mqtt_tls="true", link_mqtt_tls_ca=wrong).says(
        "certificate verify failed"
    )


def test_link_topics_are_not_forwarded_to_wildcard_subscribers(scene):
    one, two = scene.broker(), scene.broker()
    plain = {"link_mqtt_prefix": "links/of/agents"}
    agents = [beside(scene, one, **plain), beside(scene, two, one, **plain)]
    eventually(lambda: all(is_installed(agent) for agent in agents), "linked")
    beside_dialler, beside_listener = scene.client(two.port), scene.client(one.port)
    beside_listener.subscribe("#")
    beside_dialler.subscribe("#", "links/#", "links/of/agents/up/+/+")
    eventually(lambda: is_installed(agents[0], "#"), "installed")
    eventually(lambda: is_installed(agents[1], "#"), "installed")
    publisher = scene.client(one.port)
    publisher.publish("links/of/agents/up/0123456789abcdef/x", b"no link")
    publisher.publish("links/of/others", b"end")
    beyond = beside_dialler.wait_for(b"end")
    assert set(beyond) == {("links/of/others", b"end")}
    # At its own broker all clients can see them; hence the $ in the default prefix.
    seen = {topic for topic, _ in beside_listener.wait_for(b"end")}
    assert any(re.fullmatch("links/of/agents/down(/[0-9a-f]{16}){2}", topic) for topic in seen)
    for agent in agents:
        assert not [name for name in local(agent) if name.startswith("links/of/agents")]


def test_mqtt_link_may_be_dialled_by_any_agent(scene):
    one, two = scene.broker(), scene.broker()
    first = beside(scene, one)
    second = scene.agent(
        broker_port=two.port,
        broker_log_file=two.log_file,
        link_neighbours=f"mqtt://127.0.0.1:{one.port}",
    )
    assert_crosses(scene, scene.client(one.port), scene.client(two.port), [first, second])


def test_death_of_either_agent_is_detected_and_link_restored(scene):
    one, two = scene.broker(), scene.broker()
    first, second = beside(scene, one), beside(scene, two, one)
    eventually(lambda: is_installed(first) and is_installed(second), "linked")
    second.close()  # kill -9
    first.says("reason='closed by the other side: gone'")
    again = beside(scene, two, one)
    eventually(lambda: is_installed(again), "linked again")
    first.close()
    again.says('reason="the neighbour\'s agent has gone"')


@pytest.mark.long
def test_small_packet_limit_of_broker_is_reported_and_respected(scene):
    """Mosquitto drops larger ones silently and announces no limit."""
    one, two = scene.broker("message_size_limit 4000"), scene.broker()
    first = beside(scene, one)
    second = beside(scene, two, one)
    eventually(lambda: is_installed(first) and is_installed(second), "linked")
    subscriber = scene.client(one.port).subscribe("large/#")
    eventually(lambda: is_installed(first, "large/#"), "installed")
    publisher = scene.client(two.port)
    publisher.publish("large/a", b"x" * 3_900, b"y" * 3_900, b"z" * 3_900)  # together too large
    for agent in (first, second):
        agent.says("message_size_limit is below [link.mqtt] chunk_bytes")
    first.close()
    second.close()
    first = beside(scene, one, link_mqtt_chunk_bytes=2_000)
    second = beside(scene, two, one, link_mqtt_chunk_bytes=2_000)
    eventually(lambda: is_installed(first, "large/#") and is_installed(second), "linked again")
    publisher.publish("large/a", b"x" * 3_900, b"y" * 3_900, b"end")
    received = [payload[:1] for _, payload in subscriber.wait_for(b"end")]
    assert received[-3:] == [b"x", b"y", b"e"]
