"""`hansa manager`: run the topology manager, an HTTP service."""

import asyncio
import re
import sys
import time
from collections.abc import Sequence

from hansa.agent.topology.member_connection import PORT
from hansa.cli.arguments import Parser, decimal_number, path, whole_number
from hansa.errors import UsageError, install_extra
from hansa.printable import log_to_stderr

SCOPES = ("join", "read", "operate", "admin")

EXAMPLES = """\
  hansa manager                                    on 127.0.0.1:8080, with SQLite in this directory
  hansa manager --database postgresql://hansa@db/hansa
  hansa manager --state /var/lib/hansa/manager     agents join by their certificates, on port 10503
  HANSA_MANAGER_TOKEN=… hansa manager --host 0.0.0.0
  hansa manager --add-token page --scope operate   print a new token and exit

The paper's variables set the federation's settings: CORE_ANN_INTERVAL, BEACON_INTERVAL,
FED_REDUNDANCY, TOP_MAX_REDUNDANCY. The API is documented at /docs and /openapi.json.
"""


def run(given: Sequence[str]) -> int:
    """Run until SIGTERM or Ctrl-C."""
    args = _parser().parse_args(given)
    try:
        from hansa.manager.service import ManagerOptions, ManagerService
    except ImportError as error:
        needed = install_extra("manager")
        raise UsageError(f"hansa manager needs more: {needed} ({error})") from error
    if args.tls_key and not args.tls_certificate:
        raise UsageError("--tls-key needs --tls-certificate")
    options = ManagerOptions(
        *(args.host, args.port, args.database, args.rate),
        tls_certificate=args.tls_certificate,
        tls_key=args.tls_key,
        state=args.state,
        node_host=args.node_host,
        node_port=args.node_port,
    )
    if args.add_token:
        return _add_token(args.database, args.add_token, tuple(args.scope or ("join",)))
    log_to_stderr("INFO")
    manager = ManagerService(options)
    asyncio.run(manager.run())
    return 0


def _add_token(database: str, name: str, scopes: tuple[str, ...]) -> int:
    from hansa.manager.access import AccessControl
    from hansa.manager.schemas import PATTERN_MEANINGS, TOKEN_NAME
    from hansa.manager.store import open_store

    if not re.fullmatch(TOKEN_NAME, name):
        raise UsageError(f"--add-token {name!r}: the name must be {PATTERN_MEANINGS[TOKEN_NAME]}")
    store = open_store(database)
    replaced = any(row.name == name for row in store.tokens())
    print(AccessControl(store).add_token(name, scopes, time.time_ns() / 1e9))
    store.close()
    what = "replaced the token" if replaced else "added the token"
    print(
        f"{what} {name!r} with scope {', '.join(scopes)}; only its digest is stored, so it"
        " cannot be shown again",
        file=sys.stderr,
    )
    return 0


def _parser() -> Parser:
    made = Parser(
        "hansa manager",
        "Register the nodes of a federation, monitor them, and plan their links.",
        EXAMPLES,
    )
    made.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="listening address (default 127.0.0.1); another one requires a token",
    )  # fmt: skip
    made.add_argument(
        "--port", type=whole_number(0, 65_535), default=8080, metavar="PORT",
        help="listening port (default 8080); 0 takes a free one and logs it",
    )  # fmt: skip
    made.add_argument(
        "--database", default="sqlite:///hansa-manager.db", metavar="URL",
        help="sqlite:///FILE or postgresql://… (default sqlite:///hansa-manager.db)",
    )  # fmt: skip
    made.add_argument(
        "--rate", type=decimal_number(1, 100_000), default=100.0, metavar="N",
        help="requests per second of one client, twice as many in a burst (default 100)",
    )  # fmt: skip
    made.add_argument(
        "--tls-certificate", default="", metavar="FILE",
        help="serve HTTPS with this certificate and its chain; agents use https://… as manager",
    )  # fmt: skip
    made.add_argument(
        "--tls-key", default="", metavar="FILE", help="its private key, if it is in another file"
    )
    made.add_argument(
        "--state", type=path, metavar="DIR",
        help="directory with a certificate of the role manager: agents join by certificates, at"
        " hansa://HOST:10503, and no longer by tokens",
    )  # fmt: skip
    made.add_argument(
        "--node-host", default="0.0.0.0", metavar="ADDRESS",
        help="with --state: listening address for agents (default 0.0.0.0)",
    )  # fmt: skip
    made.add_argument(
        "--node-port", type=whole_number(0, 65_535), default=PORT, metavar="PORT",
        help=f"with --state: listening port for agents (default {PORT}); 0 takes a free one",
    )  # fmt: skip
    made.add_argument("--add-token", metavar="NAME", help="create a token, print it, and exit")
    made.add_argument(
        "--scope", action="append", choices=SCOPES,
        help="with --add-token: a scope of the token; may be repeated (default join)",
    )  # fmt: skip
    return made
