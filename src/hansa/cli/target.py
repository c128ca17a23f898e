"""Options of commands that ask the agents of a federation, and the choice of the agents.

In this order: an address or ready file on the command line, `--config`, `--context`,
`HANSA_CONTEXT`, the current context, the agent of this machine.
"""

import argparse
import json
import os
from pathlib import Path

from hansa.cli.arguments import Parser, path
from hansa.console.admin_client import (
    TOKEN_VARIABLE,
    AdminClient,
    client_for_context,
    urls_of_target,
)
from hansa.console.contexts import CONTEXT_VARIABLE, AgentContext, load_contexts
from hansa.console.terminal import say
from hansa.errors import UsageError

OTHER_AGENT = "name another one with --agent URL, or save it with hansa context add"

LOCAL_URL = "http://127.0.0.1:8080"
"""The agent of this machine, unless its `[admin]` settings say otherwise."""


def add_target_options(parser: Parser) -> None:
    """Add the arguments that choose the agents to ask; the first one is positional."""
    parser.add_argument(
        "target",
        nargs="?",
        help="admin URL or host:port of an agent, or a ready file of hansa up (default: the"
        " current context, or the agent of this machine)",
    )
    parser.add_argument("--agent", metavar="URL", help="the same as target")
    parser.add_argument("--context", default="", metavar="NAME", help="a saved context")
    parser.add_argument(
        "--config", type=path, metavar="FILE", help="settings of an agent on this machine"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def take_target(args: argparse.Namespace, name: str, otherwise: str) -> None:
    """For actions that list all: take the argument `name`, which is meant for other actions, as the
    target; raise UsageError with `otherwise` if it does not look like one."""
    word = getattr(args, name)
    if not word:
        return
    if args.target is not None or not (":" in word or Path(word).is_file()):
        raise UsageError(f"{otherwise}; --agent URL says which agent to ask")
    args.target = word
    setattr(args, name, "")


def client_of(args: argparse.Namespace) -> AdminClient:
    """Return a client of the agents that the options choose, which reports slow agents; raise
    UsageError if there are none."""
    client = _chosen_client(args)
    client.on_slow = say
    return client


def _chosen_client(args: argparse.Namespace) -> AdminClient:
    token = os.environ.get(TOKEN_VARIABLE, "")
    _check_one_choice(args)
    target = args.agent if args.target is None else args.target
    if target is not None:
        return AdminClient(urls_of_target(target), token)
    if args.config is not None:
        return _client_from_settings(args.config, token)
    saved = load_contexts()
    name = args.context or os.environ.get(CONTEXT_VARIABLE, "") or saved.current
    if name:
        return client_for_context(saved.get(name))
    return AdminClient((LOCAL_URL,), token, hint=OTHER_AGENT)


def _check_one_choice(args: argparse.Namespace) -> None:
    """Raise UsageError for two answers to the question which agents to ask."""
    options = {"--agent": args.agent, "--context": args.context, "--config": args.config}
    given = [f"{option} {value}" for option, value in options.items() if value]
    if args.target is not None:
        given.insert(0, str(args.target))
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} both say which agents to ask: leave out one")


def _client_from_settings(file: Path, token: str) -> AdminClient:
    from hansa.agent.settings import load_settings  # slow, and rarely needed

    admin = load_settings(file).admin
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(admin.host, admin.host)
    shown = f"[{host}]" if ":" in host else host
    url = f"{admin.scheme}://{shown}:{admin.port}"
    context = AgentContext((url,), ca_file=admin.tls_certificate)
    return client_for_context(context).with_token(token or admin.token or admin.read_token)


def print_json(document: object) -> None:
    """Print a document of an agent; control characters in it are escaped."""
    print(json.dumps(document, indent=1, sort_keys=True))
