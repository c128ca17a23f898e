"""`hansa top`: the tables of `hansa status`, live."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from hansa.cli import status_client, status_tables
from hansa.cli.arguments import Parser, decimal_number
from hansa.cli.status_client import StatusResponse
from hansa.cli.status_tables import Rates
from hansa.errors import UsageError
from hansa.terminal import console

EXAMPLES = """\
  hansa top http://127.0.0.1:8080             one agent
  hansa top up.json --interval 0.5            all nodes of `hansa up ... --ready-file up.json`"""

INTERVAL_S = 1.0
KEYS_MAX = 64
"""Keys that are read at once."""


def run(given: Sequence[str]) -> int:
    """Show it until `q` or Ctrl-C; print it once if there is no terminal."""
    parser = Parser("hansa top", "Show what agents say, live; q ends it.", EXAMPLES)
    parser.add_argument("target", help="URL or host:port of an agent's pages, or a ready file")
    parser.add_argument(
        "--interval",
        type=decimal_number(0.1, 3_600, "seconds"),
        default=INTERVAL_S,
        metavar="SECONDS",
        help="seconds between two readings (default 1)",
    )
    args = parser.parse_args(given)
    urls = status_client.status_urls(args.target)
    pages = status_client.fetch_all(urls)
    out = console()
    if not (out.is_terminal and sys.stdin.isatty()):
        out.print(status_tables.render_tables(pages))
        return 0
    with _raw_keyboard() as keys, Live(console=out, screen=True, auto_refresh=False) as live:
        _refresh_until_stopped(urls, pages, args.interval, live, keys)
    return 0


class Keyboard:
    """The keyboard."""

    def is_pressed(self, key: str, within_s: float) -> bool:
        """Wait so long for any key; return whether it was this one."""
        ready, _, _ = select.select([sys.stdin], [], [], within_s)
        if not ready:
            return False
        typed = os.read(sys.stdin.fileno(), KEYS_MAX).decode(errors="replace")
        return key in typed or not typed  # nothing to read means that the terminal is gone


@contextmanager
def _raw_keyboard() -> Iterator[Keyboard]:
    """Take keys without Enter, and leave the terminal as it was."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield Keyboard()
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _refresh_until_stopped(
    urls: Sequence[str],
    pages: tuple[StatusResponse, ...],
    interval_s: float,
    live: Live,
    keys: Keyboard,
) -> None:
    read_at = time.monotonic()
    rates: Rates = {}
    while True:
        live.update(_screen(pages, rates, interval_s), refresh=True)
        try:
            if keys.is_pressed("q", interval_s):
                return
        except KeyboardInterrupt:
            return
        before, since = pages, read_at
        pages, read_at = _fetch_again(urls), time.monotonic()
        rates = rates_between(before, pages, read_at - since)


def _fetch_again(urls: Sequence[str]) -> tuple[StatusResponse, ...]:
    """Read once more; that nobody answers now may pass, so it is shown and no end."""
    try:
        return status_client.fetch_all(urls)
    except UsageError as problem:
        return tuple(StatusResponse(url, problem=str(problem)) for url in urls)


def _screen(pages: tuple[StatusResponse, ...], rates: Rates, interval_s: float) -> RenderableType:
    hint = Text(f"every {interval_s:g} s; q ends", style="dim")
    return Group(hint, status_tables.render_tables(pages, rates))


def rates_between(
    before: Sequence[StatusResponse], after: Sequence[StatusResponse], seconds: float
) -> Rates:
    """Return how much each counter grew a second; one that started anew counts from 0."""
    old = {page.url: page.status.counters for page in before if page.status is not None}
    rates: dict[tuple[str, str], float] = {}
    for page in after:
        if page.status is None or page.url not in old or seconds <= 0:
            continue
        for counter, value in page.status.counters.items():
            was = old[page.url].get(counter, 0)
            rates[page.url, counter] = (value - was if value >= was else value) / seconds
    return rates
