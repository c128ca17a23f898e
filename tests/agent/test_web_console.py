"""The web page of an agent in a real browser, with real brokers."""

import re
import sys
from collections.abc import Iterator

import pytest
from tests.agent.browser import Browser
from tests.agent.live import Live, eventually
from tests.agent.page import Page
from tests.agent.process import Process

from hansa.simulator.topologies import parse_topology
from hansa.testbed.federation import LinkProfile, LocalFederation
from hansa.testbed.mosquitto import free_port
from hansa.web_console import load_assets

STRANGE_NAME = "<img src=x onerror=alert(1)>"
TOKEN = "read the messages"


@pytest.fixture(scope="module")
def federation(mosquitto: str) -> Iterator[Live]:
    """A ring of four for all tests, which restore what they break."""
    environment = {"HANSA_ADMIN_TOKEN": TOKEN}
    topology, links = parse_topology("ring:4", 1), LinkProfile(can_cut=True)
    live = Live(LocalFederation(topology, environment, link_profile=links))
    try:
        live.start()
        yield live
    finally:
        live.close()


@pytest.fixture
def page(browser: Browser, federation: Live) -> Iterator[Page]:
    federation.wait_converged()
    browser.problems.clear()
    browser.requests.clear()
    browser.resize(1280, 900)
    yield Page(browser, federation.nodes[0].admin_url)
    browser.visit("about:blank")
    federation.hang_up()
    assert browser.problems == []
    own = tuple(f"{node.admin_url}/" for node in federation.nodes)
    assert [url for url in browser.requests if not url.startswith((*own, "about:"))] == []


def test_agent_without_a_manager_says_how_to_get_proposals(page):
    page.show("proposals")
    page.shows("This agent knows no topology manager")
    page.shows("hansa manager")


def test_graph_shows_nodes_links_and_traffic(page, federation):
    page.show()
    page.has("svg.graph g[role=button]", 4)
    page.has("svg.graph line.area", 4)
    page.has("svg.graph g.self")
    page.shows("None: every known node is reachable")
    page.shows(r"\d B/s|kB/s")
    assert page.browser.evaluate("document.querySelector('#state').className") == "pill good"


def test_killed_node_turns_red_and_recovers(page, federation):
    page.show()
    page.has("svg.graph g[role=button]", 4)
    page.shows("None: every known node is reachable")
    federation.nodes[2].agent.kill()
    took = page.has("svg.graph g.bad")
    sys.stdout.write(f"kill -9 shown after {took:.2f} s\n")  # docs/how-to/monitor.md has values
    page.shows("2 is unreachable")
    page.has("svg.graph line.lost", 2)
    # Both neighbours noticed the closed connection; neither waited for missing heartbeats.
    page.show("timeline")
    for neighbour in (1, 3):
        page.shows(rf"link down\s+2\s+(?:\d, )*{neighbour}\b")
    lost = re.findall(r"link down\s+2\s+[\d, ]+\s+(.+)", page.text)
    assert lost and not any("silent" in reason for reason in lost)
    page.show("alarms")
    page.shows(r"2\s+unreachable\s+this agent has no path to it")
    page.show()
    page.has("svg.graph g.bad")
    federation.run(federation.federation.start_agent(2))
    page.has("svg.graph g.bad", 0)
    page.has("svg.graph line.lost", 0)


def test_cut_link_turns_red_and_its_history_has_the_reason(page, federation):
    page.show()
    page.shows("None: every known node is reachable")
    relay = federation.federation.link_relay(1, 2)
    relay.cut()
    try:
        took = page.has("svg.graph line.lost")
        sys.stdout.write(f"cut link shown after {took:.2f} s\n")
        page.shows(r"1 – 2\s+is down since")
        page.show()  # a page that was opened later learns it from the history
        page.has("svg.graph line.lost")
        page.show("trace//a")
        page.has("svg.graph line.lost")
        page.show()
        page.has("svg.graph line.lost")
        page.click("#faults a")
        page.shows(r"link down\s+[12]\s+[12]\s")
    finally:
        federation.federation.restore_link(1, 2)
    page.shows(r"up, round trip", 120)


def test_nodes_and_one_node_with_its_filters(page, federation):
    federation.subscriber(3, "shown/+")
    page.show("nodes")
    page.shows(r"3\s+up\s+\d+\.\d+\.\d+\S*\s+2\s+1\s")
    page.click("tbody tr:last-child a")
    page.shows(r"Filters of clients \(1\)\s+filter\s+shown/\+")


def test_topics_are_a_tree_with_rates_and_subscribers(page, federation):
    federation.subscriber(2, "plant/1/temp")
    publisher = federation.client(0)
    page.show("topics")
    page.shows("▸ plant")
    page.click("button.tree")
    page.shows("▸ 1")

    def shows_rate() -> bool:
        publisher.publish("plant/1/temp", *[b"x"] * 5)
        return bool(re.search(r"▾ plant\s+\d+/s\s+1\s", page.text))

    eventually(shows_rate, f"a rate in {page.text}")
    page.type_into("input[type=search]", "temp")
    page.shows(r"temp\s+\d*[/s\s]*1\s+2\s")


def test_trace_is_drawn_on_the_graph(page, federation):
    federation.subscriber(2, "traced/#")
    page.show("trace//traced%2Fx")
    page.shows(r"Delivered at 2\.")
    page.has("svg.graph line.path", 2)
    page.has("svg.graph line.path.delivered", 1)


def test_real_message_is_published_after_a_confirmation(page, federation):
    subscriber = federation.subscriber(2, "real/#")
    page.show("trace//real%2Fx")
    page.shows(r"Delivered at 2\.")
    page.click("#view button.real")
    page.shows("All subscribers of real/x will receive a message")
    page.click("#view button.confirm")
    page.shows(r"The message was delivered at 2\.")
    page.shows(r"to the broker \d")
    subscriber.wait_for_any()
    assert subscriber.received[0].payload.startswith(b"hansa trace ")


def test_messages_need_the_token_and_end_at_their_number(page, federation):
    publisher = federation.client(0)
    page.show("messages")
    page.has("input[type=password]")
    page.type_into("input[type=search]", "tail/#")
    page.type_into("input[type=number]", "3")
    page.click("form button")
    page.shows("the token is missing or wrong")
    eventually(lambda: page.text and page.browser.problems, "the refusal on the console")
    assert page.browser.problems.pop().startswith("Failed to load resource")
    page.type_into("input[type=password]", TOKEN)
    page.click("form button")

    def shows_message() -> bool:
        publisher.publish("tail/a", b"<b>21.5</b>")
        return "ended after 3 messages" in page.text

    eventually(shows_message, f"messages in {page.text}")
    assert page.text.count("<b>21.5</b>") == 3
    interest = federation.nodes[0].status()["interest"]
    assert "tail/#" not in interest["local"]


@pytest.mark.parametrize(
    ("view", "text"),
    [
        ("delivery", "None: no receiver is behind"),
        ("retained", r"0 with different values"),
        ("alarms", "No alarm is active"),
        ("timeline", r"link up[\s\S]*node reachable"),
        ("counters", r"Sizes of bounded state[\s\S]*nodes\s+4"),
        ("links", r"0 – 1\s+up\s+[\d.]+ ms"),
    ],
)
def test_view_shows_its_facts(page, view, text):
    page.show(view)
    page.shows(text)


def test_page_works_with_the_keyboard(page):
    page.show()
    page.has("svg.graph g[role=button]", 4)
    page.browser.evaluate("document.querySelector('svg.graph g[role=button]:not(.self)').focus()")
    page.browser.press("Enter", "\r")
    page.has("svg.graph g.chosen:not(.self)")
    page.browser.press("Tab")
    assert page.browser.evaluate("document.activeElement.getAttribute('role')") == "button"


def test_narrow_page_is_not_wider_than_the_phone(page):
    page.browser.resize(390, 844)
    for view in ("graph", "nodes", "topics", "trace", "messages", "timeline"):
        page.show(view)
        page.shows("nodes reachable")
        assert page.browser.evaluate("document.documentElement.scrollWidth") <= 390


def test_stopped_agent_is_reported_and_found_again(page, federation):
    page.url = federation.nodes[3].admin_url
    page.show("counters")
    page.shows("Sizes of bounded state")
    federation.nodes[3].agent.terminate()
    page.shows("The agent does not answer")
    assert "Traceback" not in federation.log(3)  # the stream was closed, not cancelled
    federation.run(federation.federation.start_agent(3))
    eventually(lambda: "The agent does not answer" not in page.text, "the agent answers")
    page.browser.problems.clear()  # failed requests while the agent was stopped


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


def test_names_are_shown_as_text(browser, scene):
    _, second = two_agents(scene)
    page = Page(browser, f"http://127.0.0.1:{second.admin_port}")
    for view in ("graph", "nodes", "links", "timeline"):
        page.show(view)
        page.shows(re.escape(STRANGE_NAME))
        assert page.count("img") == 0
    browser.visit("about:blank")


def test_page_loads_nothing_from_other_hosts(scene):
    agent = scene.agent(broker_port=scene.broker().port, broker_observer="static")
    eventually(lambda: agent.page("/healthz")[0] == 200, "the agent answers")
    for path, (text, _) in load_assets().items():
        assert agent.page(path) == (200, text)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
