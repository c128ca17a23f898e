"""`hansa doctor federation`: what is wrong with a running federation."""

from collections.abc import Sequence

from rich.text import Text

from hansa.cli.arguments import Parser
from hansa.cli.target import add_target_options, client_of, print_json
from hansa.console.federation import fetch_federation
from hansa.console.federation_checks import (
    Importance,
    check_federation_health,
    merge_findings,
)
from hansa.console.federation_tables import fill_table
from hansa.console.terminal import console

EXAMPLES = """\
  hansa doctor federation                     the federation of the agent on this machine
  hansa doctor federation --context plant     by a saved context"""

STYLES = {Importance.ERROR: "red", Importance.WARNING: "yellow", Importance.NOTE: "dim"}


def run(given: Sequence[str]) -> int:
    """Print findings with remedies, the most serious first; exit code 1 if one is an error."""
    parser = Parser(
        "hansa doctor federation",
        "Check a running federation: reachability, brokers and their queues, alarms, clocks,\n"
        "versions, settings that differ or contradict the broker, links that flap, disks,\n"
        "certificates. Print what to do, the most serious first. Exit code 1 if there is an\n"
        "error.",
        EXAMPLES,
    )
    add_target_options(parser)
    args = parser.parse_args(given)
    _, federation = fetch_federation(client_of(args))
    findings = check_federation_health(federation)
    if args.json:
        rows = [
            {
                "importance": each.importance.name.lower(),
                "node": each.node,
                "text": each.text,
                "remedy": each.remedy,
            }
            for each in findings
        ]
        print_json({"findings": rows})
    elif findings:
        cells = [
            (
                Text(each.importance.name.lower(), STYLES[each.importance]),
                each.node,
                each.text,
                each.remedy,
            )
            for each in merge_findings(findings)
        ]
        console().print(fill_table("Findings", ("", "node", "what", "what to do"), cells))
    else:
        print(f"nothing to complain about at {len(federation.nodes)} nodes")
    return 1 if any(each.importance is Importance.ERROR for each in findings) else 0
