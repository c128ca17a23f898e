"""`hansa topic`: who subscribes to what, and the path of a topic."""

import argparse
from collections.abc import Callable, Sequence

from hansa.cli.arguments import Parser, one_of
from hansa.cli.target import add_target_options, client_of, print_json, take_target
from hansa.cli.trace import add_real_option, show_trace
from hansa.console.admin_client import AdminClient
from hansa.console.federation import check, fetch_federation
from hansa.console.federation_tables import TopicsDocument, topics_table
from hansa.console.terminal import console
from hansa.errors import UsageError

EXAMPLES = """\
  hansa topic ls                             filters of clients, with the nodes that subscribe
  hansa topic trace plant/temp               where a publication at the asked node would go
  hansa topic trace plant/temp --from line-2 the same for one at another node"""


def run(given: Sequence[str]) -> int:
    """Run one action."""
    parser = Parser(
        "hansa topic",
        "List the filters that clients subscribe to, with the nodes and the core of each, or show\n"
        "the path of a topic, as hansa trace does.",
        EXAMPLES,
    )
    parser.add_argument("action", type=one_of(ACTIONS), help=", ".join(ACTIONS))
    parser.add_argument("topic", nargs="?", default="", help="trace: a topic without wildcards")
    parser.add_argument(
        "--from", dest="origin", default="", metavar="NODE", help="trace: name or id of the node"
        " where it is published (default: the asked one)",
    )  # fmt: skip
    add_real_option(parser)
    add_target_options(parser)
    args = parser.parse_args(given)
    if args.action == "ls":
        text = (
            "hansa topic ls lists all filters; `hansa topic trace TOPIC` shows the path of a topic"
        )
        if args.origin or args.real:
            raise UsageError(text)
        take_target(args, "topic", text)
    return ACTIONS[args.action](client_of(args), args)


def _list(client: AdminClient, args: argparse.Namespace) -> int:
    document = client.get("/status")
    if args.json:
        print_json({"groups": document["groups"]})
        return 0
    topics = check(document, TopicsDocument)
    if not any(topics.groups):
        print("no client subscribes to a topic that crosses, or the agents do not know yet")
        return 0
    console().print(topics_table(fetch_federation(client)[1], topics))
    return 0


def _trace(client: AdminClient, args: argparse.Namespace) -> int:
    if not args.topic:
        raise UsageError("name a topic: `hansa topic trace plant/temp`")
    return show_trace(client, args.topic, args.origin, args.json, args.real)


ACTIONS: dict[str, Callable[[AdminClient, argparse.Namespace], int]] = {
    "ls": _list,
    "trace": _trace,
}
