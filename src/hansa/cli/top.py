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

from hansa.cli.arguments import Parser, decimal_number
from hansa.console.agent_status import (
    Rates,
    StatusResponse,
    fetch_all,
    rates_between,
    render_tables,
    status_urls,
)
from hansa.console.terminal import console
from hansa.errors import UsageError

EXAMPLES = """\
  hansa top http://127.0.0.1:8080             one agent
  hansa top up.json --interval 0.5            all nodes of `hansa up ... --ready-file up.json`"""

INTERVAL_S = 1.0
KEYS_MAX = 64
"""Bytes of keyboard input per read."""


def run(given: Sequence[str]) -> int:
    """Show the status until `q` or Ctrl-C; without a terminal, print it once."""
    parser = Parser("hansa top", "Show the status of agents, live; q quits.", EXAMPLES)
    parser.add_argument("target", help="admin URL or host:port of an agent, or a ready file")
    parser.add_argument(
        "--interval",
        type=decimal_number(0.1, 3_600, "seconds"),
        default=INTERVAL_S,
        metavar="SECONDS",
        help="seconds between two updates (default 1)",
    )
    args = parser.parse_args(given)
    urls = status_urls(args.target)
    responses = fetch_all(urls)
    out = console()
    if not (out.is_terminal and sys.stdin.isatty()):
        out.print(render_tables(responses))
        return 0
    with _unbuffered_keys(), Live(console=out, screen=True, auto_refresh=False) as live:
        _refresh_until_stopped(urls, responses, args.interval, live)
    return 0


def _is_pressed(key: str, within_s: float) -> bool:
    """Wait at most `within_s` seconds for input; return whether it contains the key."""
    ready, _, _ = select.select([sys.stdin], [], [], within_s)
    if not ready:
        return False
    typed = os.read(sys.stdin.fileno(), KEYS_MAX).decode(errors="replace")
    return key in typed or not typed  # end of file: the terminal was closed


@contextmanager
def _unbuffered_keys() -> Iterator[None]:
    """Deliver keys without Enter; restore the terminal at the end."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _refresh_until_stopped(
    urls: Sequence[str],
    responses: tuple[StatusResponse, ...],
    interval_s: float,
    live: Live,
) -> None:
    fetched_at = time.monotonic()
    rates: Rates = {}
    while True:
        live.update(_screen(responses, rates, interval_s), refresh=True)
        try:
            if _is_pressed("q", interval_s):
                return
        except KeyboardInterrupt:
            return
        before, since = responses, fetched_at
        responses, fetched_at = _fetch_again(urls), time.monotonic()
        rates = rates_between(before, responses, fetched_at - since)


def _fetch_again(urls: Sequence[str]) -> tuple[StatusResponse, ...]:
    """Fetch; if no agent answers, return that as a problem, because it may be transient."""
    try:
        return fetch_all(urls)
    except UsageError as problem:
        return tuple(StatusResponse(url, problem=str(problem)) for url in urls)


def _screen(
    responses: tuple[StatusResponse, ...], rates: Rates, interval_s: float
) -> RenderableType:
    hint = Text(f"every {interval_s:g} s; q quits", style="dim")
    return Group(hint, render_tables(responses, rates))
