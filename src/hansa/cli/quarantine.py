"""`hansa quarantine`: list and release the nodes that agents refuse for misbehaviour."""

from collections.abc import Sequence

import msgspec
from rich.text import Text

from hansa.cli.arguments import Parser, one_of
from hansa.cli.target import add_target_options, client_of, print_json, take_target
from hansa.console.quarantine import fetch_quarantined, holds, release
from hansa.console.terminal import console, make_table
from hansa.errors import UsageError

EXAMPLES = """\
  hansa quarantine ls                 nodes that the asked agents refuse, and why
  hansa quarantine release line-2     accept a node again, by name or id"""


def run(given: Sequence[str]) -> int:
    """List or release; exit code 2 if an agent refuses."""
    parser = Parser(
        "hansa quarantine",
        "List and release nodes in quarantine. An agent refuses a node for 1 s to 10 min after\n"
        "three frames within 60 s that no honest node sends. All agents of the context are\n"
        "asked. A release needs [admin] operate_token or token if the agent has one, otherwise\n"
        "root or the user of the agent.",
        EXAMPLES,
    )
    parser.add_argument("action", type=one_of(("ls", "release")), help="ls, release")
    parser.add_argument("node", nargs="?", default="", help="release: name or id of the node")
    add_target_options(parser)
    args = parser.parse_args(given)
    if args.action == "ls":
        take_target(args, "node", "hansa quarantine ls lists all nodes")
    elif not args.node:
        raise UsageError("release needs the name or id of a node")
    agents = client_of(args).split()
    if args.action == "release":
        # If no agent has it in quarantine, the first one says so.
        for agent in [each for each in agents if holds(each, args.node)] or agents[:1]:
            print(f"{agent.urls[0]}: released {release(agent, args.node)}")
        return 0
    found = [(agent.urls[0], node) for agent in agents for node in fetch_quarantined(agent)]
    if args.json:
        rows = [{"agent": url, **msgspec.to_builtins(node)} for url, node in found]
        print_json({"quarantined": rows})
        return 0
    table = make_table("agent", "node", "id", ">seconds left", ">of", "reason")
    for url, node in found:
        numbers = (f"{node.remaining_s:.0f}", f"{node.duration_s:.0f}")
        texts = (Text(url), Text(node.name or "?"), Text(node.node))
        table.add_row(*texts, *numbers, Text(node.reason))
    if found:
        console().print(table)
    else:
        print("no node is in quarantine")
    return 0
