"""`hansa trace`: the path of a topic, hop by hop, with the reason at each node."""

from collections.abc import Sequence

from hansa.cli.arguments import Parser
from hansa.cli.target import add_target_options, client_of, print_json
from hansa.console.admin_client import AdminClient
from hansa.console.federation import Trace, check
from hansa.console.federation_tables import real_trace_table, trace_table
from hansa.console.terminal import console
from hansa.errors import UsageError

EXAMPLES = """\
  hansa trace plant/temp                  where a publication at the asked node would go
  hansa trace plant/temp --from line-2    the same for one at another node
  hansa trace plant/temp --real           publish a message there, and show its path with times"""


def run(given: Sequence[str]) -> int:
    """Trace a topic; exit code 1 if an interested node is not reached."""
    parser = Parser(
        "hansa trace",
        "Show the path of a topic through the federation: which node sends it where, and why. It\n"
        "is a dry run over the forwarding tables of all nodes on the path; nothing is published.\n"
        "With --real a message of QoS 0 is published, and every subscriber of the topic gets it.\n"
        "Exit code 1 if a node with subscribers is not reached.",
        EXAMPLES,
    )
    parser.add_argument("topic", help="a topic without wildcards")
    parser.add_argument(
        "--from", dest="origin", default="", metavar="NODE", help="name or id of the node where it"
        " is published (default: the asked one)",
    )  # fmt: skip
    add_real_option(parser)
    add_target_options(parser)
    args = parser.parse_args(given)
    if args.topic.startswith(("http://", "https://")):
        raise UsageError("name the topic before the agent: `hansa trace plant/temp URL`")
    return show_trace(client_of(args), args.topic, args.origin, args.json, args.real)


def add_real_option(parser: Parser) -> None:
    parser.add_argument(
        "--real", action="store_true", help="trace: publish a message, which all subscribers of"
        " the topic receive, and show each hop with times",
    )  # fmt: skip


def show_trace(client: AdminClient, topic: str, origin: str, as_json: bool, is_real: bool) -> int:
    """Print a trace; return the exit code."""
    query = {"topic": topic, "from": origin}
    document = client.post("/trace", query) if is_real else client.get("/trace", query)
    trace = check(document, Trace)
    if as_json:
        print_json(document)
    else:
        console().print(trace_table(trace))
        if trace.real is not None:
            console().print(real_trace_table(trace, trace.real))
    if trace.real is not None:
        return 1 if trace.real.missed or trace.real.problems else 0
    return 1 if trace.missed or not trace.is_complete else 0
