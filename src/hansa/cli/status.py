"""`hansa status`: what agents say of themselves, as tables."""

import json
from collections.abc import Sequence

from hansa.cli import status_client, status_tables
from hansa.cli.arguments import Parser
from hansa.terminal import console

EXAMPLES = """\
  hansa status http://127.0.0.1:8080          one agent, by the address of its pages
  hansa status up.json                        all nodes of `hansa up ... --ready-file up.json`
  hansa status up.json --json | jq '.nodes[0].counters'"""


def run(given: Sequence[str]) -> int:
    """Print it; exit code 1 if a node does not answer."""
    parser = Parser(
        "hansa status",
        "Show what agents say: neighbours, members, topics with their core, interest, counters.",
        EXAMPLES,
    )
    parser.add_argument("target", help="URL or host:port of an agent's pages, or a ready file")
    parser.add_argument("--json", action="store_true", help="print what the agents say, as JSON")
    args = parser.parse_args(given)
    urls = status_client.status_urls(args.target)
    pages = status_client.fetch_all(urls)
    if args.json and len(urls) == 1:
        print(pages[0].body, end="")
    elif args.json:
        nodes = [json.loads(page.body) if page.status else {"problem": page.problem}
                 for page in pages]  # fmt: skip
        print(json.dumps({"nodes": nodes}, indent=1))
    else:
        console().print(status_tables.render_tables(pages))
    return 1 if any(page.problem for page in pages) else 0
