"""`hansa status`: the whole federation as tables or JSON, from one agent that answers."""

from collections.abc import Sequence

from hansa.cli.arguments import Parser
from hansa.cli.target import add_target_options, client_of, print_json
from hansa.console.federation import check, fetch_federation
from hansa.console.federation_tables import TopicsDocument, status_tables
from hansa.console.terminal import console

EXAMPLES = """\
  hansa status                                the federation of the agent on this machine
  hansa status http://127.0.0.1:8081          by the admin address of any of its agents
  hansa status --context plant                by a saved context (hansa context add)
  hansa status up.json                        a federation of `hansa up ... --ready-file up.json`
  hansa status --json | jq '.nodes[0].summary.counters'"""


def run(given: Sequence[str]) -> int:
    """Print the status; exit code 1 if a node is unreachable or does not answer."""
    parser = Parser(
        "hansa status",
        "Show nodes, links, topics, counters and alarms of a federation. One agent is asked, and\n"
        "it asks all others. Exit code 1 if a node is unreachable or does not answer.",
        EXAMPLES,
    )
    add_target_options(parser)
    parser.add_argument("--ids", action="store_true", help="show the ids of nodes, too")
    args = parser.parse_args(given)
    client = client_of(args)
    document, federation = fetch_federation(client)
    if args.json:
        print_json(document)
    else:
        topics = check(client.get("/status"), TopicsDocument)
        console().print(status_tables(federation, topics, args.ids))
    return 0 if all(node.summary is not None for node in federation.nodes) else 1
