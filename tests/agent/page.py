"""The page of one agent in a browser, as tests use it."""

import re
import time

from tests.agent.browser import Browser
from tests.agent.live import eventually


class Page:
    """The page of one agent."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.url = url

    def show(self, view: str = "graph") -> None:
        self.browser.visit("about:blank")
        self.browser.visit(f"{self.url}/#{view}")

    @property
    def text(self) -> str:
        return str(self.browser.evaluate("document.body ? document.body.innerText : ''"))

    def shows(self, pattern: str, patience: float = 60.0) -> float:
        """Wait until the page shows a text; return the seconds that it took."""
        began = time.monotonic()
        eventually(lambda: re.search(pattern, self.text), f"{pattern!r} in:\n{self.text}", patience)
        return time.monotonic() - began

    def count(self, selector: str) -> int:
        return int(self.browser.evaluate(f"document.querySelectorAll({selector!r}).length"))

    def has(self, selector: str, number: int = 1) -> float:
        began = time.monotonic()
        eventually(lambda: self.count(selector) == number, f"{number} of {selector}")
        return time.monotonic() - began

    def type_into(self, selector: str, text: str) -> None:
        self.browser.evaluate(
            f"(() => {{ const field = document.querySelector({selector!r}); field.value = {text!r};"
            " field.dispatchEvent(new Event('input')); })()"
        )

    def click(self, selector: str) -> None:
        self.browser.evaluate(f"document.querySelector({selector!r}).click()")
