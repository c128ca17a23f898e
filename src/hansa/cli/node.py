"""`hansa node`: the nodes of a federation."""

import argparse
from collections.abc import Callable, Sequence

from hansa.cli.arguments import Parser, one_of
from hansa.cli.target import add_target_options, client_of, print_json, take_target
from hansa.console.admin_client import AdminClient
from hansa.console.federation import check, fetch_federation
from hansa.console.federation_tables import node_tables, nodes_table
from hansa.console.node_answers import NodeSummary
from hansa.console.terminal import console
from hansa.errors import UsageError

EXAMPLES = """\
  hansa node ls                     all nodes of the federation, unreachable ones too
  hansa node ls --ids               with their ids
  hansa node show                   the agent that is asked
  hansa node show plant-2           any other, by name or id
  hansa node leave plant-2          let the agent on this machine leave the federation and stop"""


def run(given: Sequence[str]) -> int:
    """Run one action."""
    parser = Parser(
        "hansa node",
        "List nodes, show one, or let one leave. `leave` withdraws the subscriptions of its\n"
        "clients, so that nothing is stored for it any more, and stops the agent. It needs\n"
        "[admin] operate_token if there is one, otherwise root or the user of the agent; only the\n"
        "asked agent itself can leave.",
        EXAMPLES,
    )
    parser.add_argument("action", type=one_of(ACTIONS), help=", ".join(ACTIONS))
    parser.add_argument("node", nargs="?", default="", help="name or id of a node")
    parser.add_argument("--ids", action="store_true", help="ls: show ids, too")
    parser.add_argument(
        "--force", action="store_true", help="leave: although publications are pending for others"
    )
    add_target_options(parser)
    args = parser.parse_args(given)
    if args.action == "ls":
        text = "hansa node ls lists all nodes; `hansa node show NODE` shows one"
        take_target(args, "node", text)
    return ACTIONS[args.action](client_of(args), args)


def _list(client: AdminClient, args: argparse.Namespace) -> int:
    document, federation = fetch_federation(client)
    if args.json:
        print_json({"nodes": document["nodes"]})
    else:
        console().print(nodes_table(federation, args.ids))
    return 0


def _show(client: AdminClient, args: argparse.Namespace) -> int:
    document = client.get("/nodes", {"node": args.node})
    if args.json:
        print_json(document)
    else:
        _, federation = fetch_federation(client)
        console().print(node_tables(check(document, NodeSummary), federation.names()))
    return 0


def _leave(client: AdminClient, args: argparse.Namespace) -> int:
    if not args.node:
        raise UsageError("name the node that shall leave: `hansa node leave NAME`")
    query = {"node": args.node, "force": "yes"} if args.force else {"node": args.node}
    document = client.post("/leave", query)
    if args.json:
        print_json(document)
    else:
        how = "has withdrawn" if document["withdrawn"] else "could not withdraw all of"
        print(f"node {document['name']} {how} its interest and stops")
    return 0


ACTIONS: dict[str, Callable[[AdminClient, argparse.Namespace], int]] = {
    "ls": _list,
    "show": _show,
    "leave": _leave,
}
