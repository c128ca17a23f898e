"""`hansa top`: the federation live, with rates."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from hansa.cli.arguments import Parser, decimal_number
from hansa.cli.target import add_target_options, client_of, print_json
from hansa.console.admin_client import AdminClient
from hansa.console.federation import Federation, fetch_federation, start_fetching
from hansa.console.terminal import console
from hansa.console.top_screen import TopScreen, split_keys
from hansa.errors import UsageError
from hansa.printable import printable

EXAMPLES = """\
  hansa top                                   the federation of the agent on this machine
  hansa top --context plant --interval 5      by a saved context
  hansa top up.json                           a federation of `hansa up ... --ready-file up.json`

Keys: q quit, tab next view (nodes, links, counters, alarms), left and right choose the column to
sort by, r reverses, arrows and page keys scroll."""

INTERVAL_S = 1.0
KEYS_MAX = 64
"""Bytes of keyboard input per read."""


def run(given: Sequence[str]) -> int:
    """Show the federation until `q` or Ctrl-C; without a terminal, print it once."""
    parser = Parser(
        "hansa top",
        "Show nodes, links, counters and alarms of a federation, live, with rates. One agent is\n"
        "asked, which asks all others.",
        EXAMPLES,
    )
    add_target_options(parser)
    parser.add_argument(
        "--interval",
        type=decimal_number(0.1, 3_600, "seconds"),
        default=INTERVAL_S,
        metavar="SECONDS",
        help="seconds between two updates (default 1)",
    )
    args = parser.parse_args(given)
    client = client_of(args)
    document, federation = fetch_federation(client)
    out = console()
    if args.json:
        print_json(document)
    elif not (out.is_terminal and sys.stdin.isatty()):
        screen = TopScreen(args.interval)
        screen.add(time.monotonic(), federation)
        out.print(*screen.lines(out.width, len(federation.nodes) + 3), sep="\n")
    else:
        screen = TopScreen(args.interval)
        screen.add(time.monotonic(), federation)
        client.on_slow = None  # it would write into the screen
        with _unbuffered_keys(), Live(console=out, screen=True, auto_refresh=False) as live:
            _refresh_until_stopped(client, screen, out, live)
    return 0


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
    client: AdminClient, screen: TopScreen, out: Console, live: Live
) -> None:
    """Fetch in a thread, so that keys work while an agent takes its time."""
    due = time.monotonic() + screen.interval_s
    fetching: Future[Federation] | None = None
    try:
        while True:
            lines = screen.lines(out.width, out.height)
            live.update(Text("\n").join(lines), refresh=True)
            wait_s = 0.05 if fetching is not None else max(0.0, due - time.monotonic())
            keys = _read_keys(wait_s)
            if any(screen.press(key, out.height) for key in keys):
                return
            if fetching is not None and fetching.done():
                _take(screen, fetching)
                due, fetching = time.monotonic() + screen.interval_s, None
            elif fetching is None and time.monotonic() >= due:
                fetching = start_fetching(client)
    except KeyboardInterrupt:
        return


def _take(screen: TopScreen, fetched: Future[Federation]) -> None:
    """Add a sample; an agent without an answer may come back, so its problem is only shown."""
    try:
        screen.add(time.monotonic(), fetched.result())
    except UsageError as problem:
        screen.problem = printable(str(problem))


def _read_keys(within_s: float) -> list[str]:
    """Wait at most so long for input; return the keys, `q` if the terminal was closed."""
    ready, _, _ = select.select([sys.stdin], [], [], within_s)
    if not ready:
        return []
    typed = os.read(sys.stdin.fileno(), KEYS_MAX)
    return split_keys(typed) if typed else ["q"]
