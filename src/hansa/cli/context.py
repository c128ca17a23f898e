"""`hansa context`: saved addresses of federations, so that commands need none."""

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from hansa.cli.arguments import Parser, one_of, path
from hansa.cli.target import print_json
from hansa.console.admin_client import urls_of_target
from hansa.console.contexts import (
    CONTEXTS_MAX,
    AgentContext,
    Contexts,
    load_contexts,
    save_contexts,
)
from hansa.console.federation_tables import fill_table
from hansa.console.terminal import console
from hansa.errors import UsageError
from hansa.launcher import command_line

EXAMPLES = """\
  hansa context add plant https://plant-1.example:8080 https://plant-2.example:8080 \\
      --token-file ~/.hansa-token --ca plant-ca.pem
  hansa context use plant           commands ask this federation from now on
  hansa context ls                  all contexts; * marks the current one
  hansa context rm plant

HANSA_CONTEXT or --context selects another one for one shell or command."""


def run(given: Sequence[str]) -> int:
    """Run one action."""
    parser = Parser(
        "hansa context",
        "Save how to reach the agents of a federation: addresses, the file with the token and the\n"
        "certificate authority of the endpoints. One agent that answers is enough. The first\n"
        "context becomes the current one.",
        EXAMPLES,
    )
    parser.add_argument("action", type=one_of(ACTIONS), help=", ".join(ACTIONS))
    parser.add_argument("name", nargs="?", default="", help="name of a context")
    parser.add_argument(
        "urls",
        nargs="*",
        default=[],
        metavar="URL",
        help="add: admin addresses of agents, or a ready file of hansa up",
    )
    parser.add_argument(
        "--token-file", type=path, metavar="FILE", help="add: file that holds the token, no other"
        " user may read it",
    )  # fmt: skip
    parser.add_argument(
        "--ca", type=path, metavar="FILE", help="add: authority that signed the endpoints'"
        " certificates, or the certificate itself",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="ls: print JSON")
    args = parser.parse_args(given)
    contexts = load_contexts()
    ACTIONS[args.action](contexts, args)
    return 0


def _add(contexts: Contexts, args: argparse.Namespace) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", args.name):
        raise UsageError(f"{args.name!r} is no name: use letters, digits, dots and hyphens")
    if not args.urls:
        raise UsageError("name an admin address: `hansa context add NAME https://host:8080`")
    if len(contexts.contexts) >= CONTEXTS_MAX:
        raise UsageError(f"there are {CONTEXTS_MAX} contexts, which is the limit: remove one")
    for url, option in ((args.token_file, "--token-file"), (args.ca, "--ca")):
        if url is not None and not url.is_file():
            raise UsageError(f"{option} {url}: there is no such file")
    if args.token_file is not None and args.token_file.stat().st_mode & 0o077:
        raise UsageError(
            f"--token-file {args.token_file}: other users can read it: chmod 600 {args.token_file}"
        )
    contexts.contexts[args.name] = AgentContext(
        tuple(url for each in args.urls for url in urls_of_target(each)),
        _absolute(args.token_file),
        _absolute(args.ca),
    )
    contexts.current = contexts.current or args.name
    save_contexts(contexts)
    print(f"saved context {args.name}; the current context is {contexts.current}")


def _absolute(file: Path | None) -> str:
    return "" if file is None else str(file.expanduser().resolve())


def _use(contexts: Contexts, args: argparse.Namespace) -> None:
    contexts.get(_named(args))
    contexts.current = args.name
    save_contexts(contexts)
    print(f"the current context is {args.name}")


def _named(args: argparse.Namespace) -> str:
    if not args.name:
        raise UsageError(f"name the context: `{command_line('context', args.action, 'NAME')}`")
    return str(args.name)


def _list(contexts: Contexts, args: argparse.Namespace) -> None:
    if args.json:
        print_json(
            {
                "current": contexts.current,
                "contexts": {
                    name: msgspec.to_builtins(each) for name, each in contexts.contexts.items()
                },
            }
        )
        return
    if not contexts.contexts:
        print(f"no contexts; add one with `{command_line('context', 'add', 'NAME', 'URL')}`")
        return
    rows = [
        ("*" if name == contexts.current else "", name, "\n".join(each.urls), each.token_file)
        for name, each in sorted(contexts.contexts.items())
    ]
    console().print(fill_table("", ("", "context", "agents", "token file"), rows))


def _remove(contexts: Contexts, args: argparse.Namespace) -> None:
    contexts.get(_named(args))
    del contexts.contexts[args.name]
    if contexts.current == args.name:
        contexts.current = ""
    save_contexts(contexts)
    print(f"removed context {args.name}")


ACTIONS: dict[str, Callable[[Contexts, argparse.Namespace], None]] = {
    "add": _add,
    "use": _use,
    "ls": _list,
    "rm": _remove,
}
