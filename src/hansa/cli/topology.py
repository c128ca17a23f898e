"""`hansa topology`: look at the graph that a manager keeps, change it; and rules that make one."""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict

from rich.table import Table

from hansa.cli import arguments, topology_graph
from hansa.cli.arguments import Parser, decimal_number, one_of, path, whole_number
from hansa.cli.manager_api import ManagerRequests, Nodes
from hansa.cli.topology_graph import FORMATS, TopologyGraph
from hansa.errors import UsageError
from hansa.printable import printable
from hansa.terminal import console
from hansa.topology.comparison import RuleScore, TopologyTrial, compare_rules

TOKEN = "HANSA_MANAGER_TOKEN"

EXAMPLES = """\
  hansa topology show http://127.0.0.1:8080                 who is linked with whom
  hansa topology show http://127.0.0.1:8080 --form svg --output graph.svg
  hansa topology plan http://127.0.0.1:8080                 what the planner would change, and why
  hansa topology add http://127.0.0.1:8080 3 7              a link that must stay
  hansa topology remove http://127.0.0.1:8080 press mixer   a link that must not come back
  hansa topology drain http://127.0.0.1:8080 4              plan around a node that will leave
  hansa topology leave http://127.0.0.1:8080 4              it has been stopped for good
  hansa topology take http://127.0.0.1:8080 --advice FILE   the links that `hansa advise` says
  hansa topology compare --nodes 100 --failed 0.3           the planner beside the paper's rule
  hansa topology churn --nodes 20 --minutes 10              simulated: nodes come and go at random

A manager that wants a token gets HANSA_MANAGER_TOKEN.
"""


def run(given: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit code."""
    args = _parser().parse_args(given)
    if args.action in LOCAL_ACTIONS:
        return LOCAL_ACTIONS[args.action](args)
    if args.manager is None:
        raise UsageError(f"hansa topology {args.action} needs the manager: http://host:8080")
    api = ManagerRequests(args.manager, os.environ.get(TOKEN, ""))
    return ACTIONS[args.action](api, args)


# ---------------------------------------------------------------- the actions


def _show(api: ManagerRequests, args: argparse.Namespace) -> int:
    shown = FORMATS[args.form](read_graph(api))
    if args.output is None:
        print(shown)
        return 0
    try:
        args.output.write_text(shown + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {args.output}: {error.strerror}") from error
    return 0


def read_graph(api: ManagerRequests) -> TopologyGraph:
    """Ask a manager for the graph."""
    try:
        nodes = [
            topology_graph.GraphNode(n["id"], n["name"], n["state"], n["draining"], n["latency"])
            for n in api.request("/nodes")
            if n["state"] != "left"
        ]
        shown = {node.id for node in nodes}
        return TopologyGraph(
            nodes,
            [
                topology_graph.GraphLink(k["a"], k["b"], k["origin"], k["established"], k["rtt_ms"])
                for k in api.request("/links")
                if shown.issuperset((k["a"], k["b"]))  # others have joined since the question
            ],
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"what answers at {api.url} is no manager") from error


def _plan(api: ManagerRequests, args: argparse.Namespace) -> int:
    nodes, changes = Nodes(api), api.request("/plan")
    for change in changes:
        a, b = nodes.title(change["a"]), nodes.title(change["b"])
        print(f"{change['kind']} the link between {a} and {b}: {change['reason']}")
    if not changes:
        print("nothing to change")
    return 0


def _add(api: ManagerRequests, args: argparse.Namespace) -> int:
    nodes, (a, b) = _two_nodes(api, args)
    origins = {frozenset((k["a"], k["b"])): k["origin"] for k in api.request("/links")}
    origin = origins.get(frozenset((a, b)))
    _link(api, a, b)
    between = f"the link between {nodes.title(a)} and {nodes.title(b)}"
    if origin is None:
        print(f"added {between}; the planner keeps it")
    elif origin == "operator":
        print(f"nothing changed: {between} was added before, and the planner keeps it")
    else:
        print(f"{between} exists; from now on the planner keeps it")
    return 0


def _link(api: ManagerRequests, a: int, b: int) -> None:
    api.request("/links", "POST", {"a": a, "b": b})


def _remove(api: ManagerRequests, args: argparse.Namespace) -> int:
    nodes, (a, b) = _two_nodes(api, args)
    _unlink(api, a, b)
    print(
        f"removed the link between {nodes.title(a)} and {nodes.title(b)}; the planner adds it again"
        " only if nothing else connects them"
    )
    return 0


def _unlink(api: ManagerRequests, a: int, b: int) -> None:
    api.request(f"/links/{a}/{b}", "DELETE")


def _drain(api: ManagerRequests, args: argparse.Namespace) -> int:
    nodes, number = _one_node(api, args)
    api.request(f"/nodes/{number}/drain", "POST", {"draining": not args.undo})
    if args.undo:
        print(f"{nodes.title(number)} stays: the planner gives it links again")
    else:
        print(f"{nodes.title(number)} is draining: the planner keeps one link until it has left")
    return 0


def _leave(api: ManagerRequests, args: argparse.Namespace) -> int:
    nodes, number = _one_node(api, args)
    api.request(f"/nodes/{number}/leave", "POST")
    print(f"{nodes.title(number)} has left; if its agent still runs, it joins again")
    return 0


def _apply_advice(api: ManagerRequests, args: argparse.Namespace) -> int:
    """Do what of some advice the manager can do, and say what is left to others."""
    if args.advice is None:
        raise UsageError("hansa topology take needs --advice FILE, from `hansa advise --json`")
    try:
        said = json.loads(args.advice.read_text(encoding="utf-8"))["advice"]
        pieces = [(piece["kind"], piece["subject"], piece["by"], piece["text"]) for piece in said]
    except OSError as error:
        raise UsageError(f"--advice {args.advice}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{args.advice} is not what `hansa advise --json` prints") from None
    nodes = Nodes(api)
    links = [subject for _, subject, by, _ in pieces if by == "manager"]
    numbers = {name: nodes.named(name) for subject in links for name in subject}
    for kind, subject, by, text in pieces:
        if by == "manager":
            a, b = (numbers[name] for name in subject)
            _link(api, a, b) if kind == "add link" else _unlink(api, a, b)
        print(printable(f"{'done' if by == 'manager' else f'left to {by}'}: {text}"))
    return 0


def _one_node(api: ManagerRequests, args: argparse.Namespace) -> tuple[Nodes, int]:
    if len(args.nodes) != 1:
        raise UsageError(f"hansa topology {args.action} needs one node")
    nodes = Nodes(api)
    return nodes, nodes.find(args.nodes[0])


def _two_nodes(api: ManagerRequests, args: argparse.Namespace) -> tuple[Nodes, tuple[int, int]]:
    if len(args.nodes) != 2:
        raise UsageError(f"hansa topology {args.action} needs two nodes, such as 3 7")
    nodes = Nodes(api)
    return nodes, (nodes.find(args.nodes[0]), nodes.find(args.nodes[1]))


ACTIONS: dict[str, Callable[[ManagerRequests, argparse.Namespace], int]] = {
    "show": _show,
    "plan": _plan,
    "add": _add,
    "remove": _remove,
    "drain": _drain,
    "leave": _leave,
    "take": _apply_advice,
}


# ---------------------------------------------------------------- the rules side by side


def _compare(args: argparse.Namespace) -> int:
    trial = TopologyTrial(args.count, args.degree_max, failed_ratio=args.failed, seed=args.seed)
    scores = compare_rules(trial)
    if args.json:
        print(json.dumps([asdict(score) for score in scores], indent=2))
    else:
        _show_scores(trial, scores)
    return 0


def _churn(args: argparse.Namespace) -> int:
    from hansa.simulator.faults.churn import ChurnOptions, run_churn
    from hansa.simulator.faults.managed_links import ManagerMode

    modes = tuple(ManagerMode(mode) for mode in args.manager_is) or tuple(ManagerMode)
    result = run_churn(
        ChurnOptions(
            args.count, 60 * args.minutes, args.trouble, modes, args.degree_max, seed=args.seed
        )
    )
    if args.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        print(
            f"{args.count} nodes, {args.minutes:g} minutes, manager {', '.join(modes)},"
            f" seed {args.seed}: {result.joined} joined, {result.failed} failed\n"
            f"split {result.splits} times, {result.split_s_max:g} s at most;"
            f" {result.parts_at_end} part at the end, {result.degree_max} neighbours at most\n"
            f"QoS 1: {result.delivered} of {result.promised} promised deliveries\n"
            f"{result.changes_per_hour:.0f} link changes per hour: {result.changes}"
        )
        for violation in result.violations:
            print(f"broken: {violation}")
    return 1 if result.violations or result.parts_at_end != 1 else 0


def _show_scores(trial: TopologyTrial, scores: list[RuleScore]) -> None:
    out = console()
    out.print(
        f"{trial.nodes} nodes join one by one, {trial.federations} federations;"
        f" {trial.failed_ratio:.0%} of them fail at once, {trial.failure_rounds} times each; seed {trial.seed}"
    )
    table = Table(
        "rule", "links", "degree, at most", "diameter", "hops", "round trip",
        "whole after failures", "whole after repair", box=None, header_style="bold",
    )  # fmt: skip
    for score in scores:
        table.add_row(
            score.rule,
            f"{score.links:.0f}",
            str(score.degree_max),
            f"{score.diameter:.1f}",
            f"{score.mean_hops:.2f}",
            f"{score.mean_ms:.0f} ms",
            f"{score.connected_ratio:.1%}",
            f"{score.repaired_ratio:.1%}",
        )
    out.print(table)


LOCAL_ACTIONS = {"compare": _compare, "churn": _churn}
"""What needs no manager."""


def _parser() -> Parser:
    made = Parser(
        "hansa topology",
        "Look at the graph that a manager keeps and change it; or compare rules that make one.",
        EXAMPLES,
    )
    made.add_argument(
        "action", type=one_of((*ACTIONS, *LOCAL_ACTIONS)), help="what to do: see below"
    )
    made.add_argument("manager", nargs="?", metavar="URL", help="where the manager is")
    made.add_argument(
        "nodes", nargs="*", metavar="NODE",
        help="nodes, by number, name or agent's id; id:3 or name:3 if 3 is a number and a name",
    )  # fmt: skip
    made.add_argument(
        "--form", type=one_of(FORMATS), default="text", metavar="text|json|dot|svg",
        help="show: how (default text)",
    )  # fmt: skip
    made.add_argument("--output", type=path, metavar="FILE", help="show: into a file")
    made.add_argument(
        "--advice", type=path, metavar="FILE", help="take: what `hansa advise --json` printed"
    )
    made.add_argument("--undo", action="store_true", help="drain: take it back")
    made.add_argument(
        "--nodes", dest="count", type=whole_number(3, 200, "nodes"), default=30, metavar="N",
        help="compare, churn: how many nodes (default 30)",
    )  # fmt: skip
    made.add_argument(
        "--degree-max", type=whole_number(3, 64, "neighbours"), default=5, metavar="N",
        help="compare, churn: neighbours of a node at most (default 5)",
    )  # fmt: skip
    made.add_argument(
        "--failed", type=decimal_number(0.0, 0.9), default=0.2, metavar="PART",
        help="compare: part of the nodes that fail at once (default 0.2)",
    )  # fmt: skip
    made.add_argument(
        "--seed", type=arguments.seed, default=1, metavar="N",
        help="compare, churn: draws places, failures, lies (default 1)",
    )  # fmt: skip
    made.add_argument(
        "--minutes", type=decimal_number(1, 1440, "minutes"), default=10.0, metavar="N",
        help="churn: virtual minutes of trouble (default 10)",
    )  # fmt: skip
    made.add_argument(
        "--trouble", type=decimal_number(0.5, 3600, "s"), default=10.0, metavar="S",
        help="churn: seconds between two troubles, on average (default 10)",
    )  # fmt: skip
    made.add_argument(
        "--manager-is", action="append", default=[], type=one_of(("up", "away", "lying")),
        metavar="up|away|lying", help="churn: what the manager is, in turn (default all three)",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="compare, churn: print JSON")
    return made
