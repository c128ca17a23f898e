"""`hansa link`: the links of a federation."""

import argparse
from collections.abc import Callable, Sequence

from hansa.cli.arguments import Parser, one_of
from hansa.cli.target import add_target_options, client_of, print_json, take_target
from hansa.console.admin_client import AdminClient
from hansa.console.federation import fetch_federation
from hansa.console.federation_tables import links_table
from hansa.console.terminal import console
from hansa.errors import UsageError

EXAMPLES = """\
  hansa link ls                                 all links with their traffic
  hansa link add plant-2.example:10500          the asked agent dials another one from now on
  hansa link rm plant-2.example:10500           and stops

An added link lasts until the agent stops; write it into [link] neighbours to keep it."""


def run(given: Sequence[str]) -> int:
    """Run one action."""
    parser = Parser(
        "hansa link",
        "List the links of a federation, or add and remove links of the asked agent. Changes need\n"
        "[admin] operate_token if the agent has one, otherwise root or the user of the agent.",
        EXAMPLES,
    )
    parser.add_argument("action", type=one_of(ACTIONS), help=", ".join(ACTIONS))
    parser.add_argument("address", nargs="?", default="", help="add, rm: address of an agent")
    add_target_options(parser)
    args = parser.parse_args(given)
    if args.action == "ls":
        take_target(args, "address", "hansa link ls lists all links")
    return ACTIONS[args.action](client_of(args), args)


def _list(client: AdminClient, args: argparse.Namespace) -> int:
    document, federation = fetch_federation(client)
    if args.json:
        print_json({"links": document["links"]})
    else:
        console().print(links_table(federation))
    return 0


def _change(client: AdminClient, args: argparse.Namespace) -> int:
    if not args.address:
        raise UsageError(f"name the agent: `hansa link {args.action} HOST:PORT`")
    document = client.post("/links", {args.action: args.address})
    if args.json:
        print_json(document)
    else:
        print(document["done"])
    return 0


ACTIONS: dict[str, Callable[[AdminClient, argparse.Namespace], int]] = {
    "ls": _list,
    "add": _change,
    "rm": _change,
}
