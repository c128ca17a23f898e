"""Takes the pictures of the web page in docs/images: `python -m tests.agent.screenshots`."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.agent.browser import Browser
from tests.agent.live import Client, Live, eventually

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation
from hansa.testbed.managed_federation import ManagedFederation

WIDE, NARROW, TALL = (1280, 720), (390, 780), (390, 1500)
PROPOSED = "document.querySelectorAll('#view td button').length > 0"
IMAGES = Path(__file__).parents[2] / "docs" / "images"


def publish_for(seconds: float, publisher: Client) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for line in range(3):
            publisher.publish(f"plant/{line}/temp", *[b"21.5"] * 10)
        publisher.publish("office/light", b"on")
        time.sleep(0.1)


def take_all(live: Live, browser: Browser, directory: Path) -> None:
    live.subscriber(8, "plant/+/temp", "plant/#")
    live.subscriber(3, "office/light")
    publisher, url = live.client(0), live.nodes[0].admin_url

    def take(name: str, view: str, size: tuple[int, int], act: str = "0") -> None:
        browser.resize(*size, is_dark=size is not WIDE)
        browser.visit("about:blank")
        browser.visit(f"{url}/#{view}")
        publish_for(3, publisher)
        browser.evaluate(act)
        publish_for(5, publisher)
        browser.screenshot(directory / f"{name}.png")

    take("console-trace-phone", "trace//plant%2F1%2Ftemp", NARROW)
    publish = (
        "for (const name of ['real', 'confirm']) document.querySelector(`#view .${name}`).click()"
    )
    take("console-real-trace-phone", "trace//plant%2F1%2Ftemp", TALL, publish)
    agent = live.nodes[7].agent
    assert agent is not None
    agent.kill()
    live.federation.cut_link(1, 2)
    publish_for(5, publisher)
    take("console", "graph", WIDE)
    take("console-phone", "graph", NARROW)
    take("console-timeline", "timeline", WIDE)


def take_proposals(browser: Browser, directory: Path) -> None:
    """Pictures of an agent whose manager waits for an operator."""
    federation = ManagedFederation(6)
    with Live(federation) as live:
        federation.request_manager("/settings", "PATCH", {"approval": True})
        federation.request_manager("/nodes/4/drain", "POST", {"draining": True})
        for name, size in (("console-proposals", WIDE), ("console-proposals-phone", NARROW)):
            browser.resize(*size, is_dark=size is NARROW)
            browser.visit("about:blank")
            browser.visit(f"{live.nodes[0].admin_url}/#proposals")
            eventually(lambda: browser.evaluate(PROPOSED), "proposals")
            browser.evaluate("document.querySelector('#view td button').click()")
            browser.screenshot(directory / f"{name}.png")
        browser.visit("about:blank")


def main(directory: Path) -> None:
    chromium = shutil.which("chromium")
    assert chromium is not None, "chromium is not installed"
    topology, links = parse_topology("grid:3x3", 1), LinkProfile(can_cut=True)
    live = Live(LocalFederation(topology, {}, link_profile=links))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        try:
            live.start()
            browser = Browser(chromium, Path(profile))
            take_all(live, browser, directory)
            take_proposals(browser, directory)
            browser.close()
        finally:
            live.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else IMAGES)
