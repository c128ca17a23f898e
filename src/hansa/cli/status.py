"""`hansa status`: the status of agents as tables or JSON."""

import json
from collections.abc import Sequence

from hansa.cli.arguments import Parser
from hansa.console.agent_status import fetch_all, render_tables, status_urls
from hansa.console.terminal import console

EXAMPLES = """\
  hansa status http://127.0.0.1:8080          one agent, by its admin address
  hansa status up.json                        all nodes of `hansa up ... --ready-file up.json`
  hansa status up.json --json | jq '.nodes[0].counters'"""


def run(given: Sequence[str]) -> int:
    """Print the status; exit code 1 if a node does not answer."""
    parser = Parser(
        "hansa status",
        "Show the status of agents: neighbours, members, topics with their core, interest,\n"
        "counters. Exit code 1 if an agent does not answer.",
        EXAMPLES,
    )
    parser.add_argument("target", help="admin URL or host:port of an agent, or a ready file")
    parser.add_argument("--json", action="store_true", help="print the status as JSON")
    args = parser.parse_args(given)
    responses = fetch_all(status_urls(args.target))
    if args.json and len(responses) == 1:
        print(responses[0].body, end="")
    elif args.json:
        nodes = [
            json.loads(each.body) if each.status else {"problem": each.problem}
            for each in responses
        ]
        print(json.dumps({"nodes": nodes}, indent=1))
    else:
        console().print(render_tables(responses))
    return 1 if any(each.problem for each in responses) else 0
