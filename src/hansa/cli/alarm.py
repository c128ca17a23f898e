"""`hansa alarm`: the active alarms of all nodes."""

from collections.abc import Sequence

from hansa.cli.arguments import Parser, one_of
from hansa.cli.target import add_target_options, client_of, print_json
from hansa.console.federation import fetch_federation
from hansa.console.federation_tables import alarms_table
from hansa.console.terminal import console

EXAMPLES = """\
  hansa alarm ls                 alarms of all nodes, and nodes that are unreachable
  hansa alarm ls --json"""


def run(given: Sequence[str]) -> int:
    """Print the alarms; exit code 1 if there are any."""
    parser = Parser(
        "hansa alarm",
        "List the active alarms of all nodes, unreachable nodes and refused links.\n"
        "Exit code 1 if there are any.",
        EXAMPLES,
    )
    parser.add_argument("action", type=one_of(("ls",)), help="ls")
    add_target_options(parser)
    args = parser.parse_args(given)
    _, federation = fetch_federation(client_of(args))
    alarms = [
        {"node": node.id, "name": node.name, "reachable": node.reachable, "problems": problems}
        for node in federation.nodes
        if (problems := node.problems()) or not node.reachable
    ]
    if args.json:
        print_json({"alarms": alarms})
    elif alarms:
        console().print(alarms_table(federation))
    else:
        print(f"no alarms at {len(federation.nodes)} nodes")
    return 1 if alarms else 0
