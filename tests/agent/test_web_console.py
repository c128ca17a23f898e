"""The web console of an agent in a real browser, with real brokers."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.agent.live import eventually
from tests.agent.process import Process

from hansa.testbed.mosquitto import free_port
from hansa.web_console import load_assets

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    " --disable-background-networking --disable-component-update --virtual-time-budget=5000"
)
STRANGE_NAME = "<img src=x onerror=alert(1)>"


@pytest.fixture
def render(tmp_path: Path):
    """Return the page as rendered after some seconds."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")

    def rendered(agent: Process, view: str = "") -> str:
        url = f"http://127.0.0.1:{agent.admin_port}/{view}"
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [chromium, *FLAGS.split(), profile, "--dump-dom", url]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=120
        ).stdout

    return rendered


def two_agents(scene) -> tuple[Process, Process]:
    link_port = free_port()
    static = {"broker_observer": "static", "broker_filters": "plant/#"}
    first = scene.agent(
        broker_port=scene.broker().port, name=STRANGE_NAME, link_port=link_port, **static
    )
    second = scene.agent(
        broker_port=scene.broker().port,
        name="second",
        link_neighbours=f"127.0.0.1:{link_port}",
        **static,
    )
    first.says("node reachable")
    second.says("node reachable")
    return first, second


def test_page_shows_nodes_links_topics_and_the_loss_of_a_node(scene, render):
    first, second = two_agents(scene)
    page = render(second)
    assert '<p id="state" role="status" class="pill good">ready</p>' in page
    assert re.search(r'aria-label="second, reachable"', page)
    assert re.search(r'aria-label="&lt;img src=x onerror=alert\(1\)&gt;, reachable"', page)
    assert "<img" not in page.partition("<body")[2]
    assert page.count("<line") == 1
    assert re.search(
        r"<td[^>]*><code>plant/#</code></td><td[^>]*>.*second", render(second, "#topics")
    )
    assert "Links of this agent" in render(second, "#links")
    first.process.kill()
    second.says("node unreachable")
    assert re.search(
        r'class="away [^"]*"[^>]*aria-label="&lt;img[^"]*, unreachable"', render(second)
    )


def test_page_loads_nothing_from_other_hosts(scene):
    agent = scene.agent(broker_port=scene.broker().port, broker_observer="static")
    eventually(lambda: agent.page("/healthz")[0] == 200, "the agent answers")
    for path, (text, _) in load_assets().items():
        assert agent.page(path) == (200, text)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
