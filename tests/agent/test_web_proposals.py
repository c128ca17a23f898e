"""The view of the manager's proposals in a real browser, with a real manager."""

from collections.abc import Iterator

import pytest
from tests.agent.browser import Browser
from tests.agent.live import Live, eventually
from tests.agent.page import Page

from hansa.testbed.managed_federation import ManagedFederation

pytest.importorskip("fastapi", reason="the manager is not installed")


@pytest.fixture
def managed(mosquitto: str) -> Iterator[tuple[Live, ManagedFederation]]:
    """Three nodes with three links."""
    federation = ManagedFederation(3)
    live = Live(federation)
    try:
        live.start()
        yield live, federation
    finally:
        live.close()


def test_proposal_is_applied_after_a_confirmation(managed, browser: Browser):
    live, federation = managed

    def links() -> int:
        return len(federation.request_manager("/links"))

    federation.request_manager("/settings", "PATCH", {"approval": True})
    federation.request_manager("/nodes/2/drain", "POST", {"draining": True})
    eventually(lambda: len(federation.request_manager("/plan")) == 1, "a proposal")
    browser.problems.clear()
    page = Page(browser, live.nodes[0].admin_url)
    page.show("proposals")
    page.shows(r"remove\s+\d – \d\s+.*Apply")
    page.click("#view td button")
    page.shows("Remove the link")
    assert links() == 3
    page.click("#view button.confirm")
    page.shows("Removed the link .*; the agents learn it from the manager")
    page.shows("The manager would change nothing now")
    assert links() == 2
    assert browser.problems == []
    live.run(federation.kill_manager())
    page.click("#view form button")
    page.shows("the manager does not answer")
    browser.visit("about:blank")
