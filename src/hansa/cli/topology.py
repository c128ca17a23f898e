"""`hansa topology`: show and change the graph of a manager; compare rules that make graphs."""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict

from rich.table import Table

from hansa.cli import arguments
from hansa.cli.arguments import Parser, decimal_number, one_of, path, whole_number
from hansa.console.terminal import console
from hansa.errors import UsageError
from hansa.manager.client import ManagerRequests, NodeDirectory
from hansa.manager.graph import FORMATS, read_graph
from hansa.printable import printable
from hansa.topology.comparison import RuleScore, TopologyTrial, compare_rules

TOKEN = "HANSA_MANAGER_TOKEN"

EXAMPLES = """\
  hansa topology show http://127.0.0.1:8080                 nodes with their links
  hansa topology show http://127.0.0.1:8080 --format svg --output graph.svg
  hansa topology plan http://127.0.0.1:8080                 what the planner would change, and why
  hansa topology add http://127.0.0.1:8080 3 7              a link that the planner must keep
  hansa topology remove http://127.0.0.1:8080 press mixer   a link that the planner must not add
  hansa topology drain http://127.0.0.1:8080 4              plan around a node that will leave
  hansa topology leave http://127.0.0.1:8080 4              a node that was stopped for good
  hansa topology apply http://127.0.0.1:8080 --advice FILE  the links that `hansa advise` proposes
  hansa topology compare --nodes 100 --failed 0.3           the planner beside the paper's rule
  hansa topology churn --nodes 20 --minutes 10              simulated: nodes join and fail at random

The token for the manager is HANSA_MANAGER_TOKEN.
"""


def run(given: Sequence[str]) -> int:
    args = _parser().parse_args(given)
    if args.action in LOCAL_ACTIONS:
        return LOCAL_ACTIONS[args.action](args)
    if args.manager is None:
        raise UsageError(f"hansa topology {args.action} needs the manager's URL: http://host:8080")
    api = ManagerRequests(args.manager, os.environ.get(TOKEN, ""))
    return ACTIONS[args.action](api, args)


# ---------------------------------------------------------------- the actions


def _show(api: ManagerRequests, args: argparse.Namespace) -> int:
    text = FORMATS[args.format](read_graph(api))
    if args.output is None:
        print(text)
        return 0
    try:
        args.output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {args.output}: {error.strerror}") from error
    return 0


def _plan(api: ManagerRequests, args: argparse.Namespace) -> int:
    nodes, changes = NodeDirectory(api), api.request("/plan")
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
        print(f"nothing changed: {between} was added before; the planner keeps it")
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
        " only if no other path connects them"
    )
    return 0


def _unlink(api: ManagerRequests, a: int, b: int) -> None:
    api.request(f"/links/{a}/{b}", "DELETE")


def _drain(api: ManagerRequests, args: argparse.Namespace) -> int:
    nodes, number = _one_node(api, args)
    api.request(f"/nodes/{number}/drain", "POST", {"draining": not args.undo})
    if args.undo:
        print(f"{nodes.title(number)} is no longer draining: the planner gives it links again")
    else:
        print(f"{nodes.title(number)} is draining: the planner keeps one link until it leaves")
    return 0


def _leave(api: ManagerRequests, args: argparse.Namespace) -> int:
    nodes, number = _one_node(api, args)
    api.request(f"/nodes/{number}/leave", "POST")
    print(f"{nodes.title(number)} has left; if its agent still runs, it joins again")
    return 0


def _apply_advice(api: ManagerRequests, args: argparse.Namespace) -> int:
    """Apply the advice that a manager can apply; print the rest."""
    if args.advice is None:
        raise UsageError("hansa topology apply needs --advice FILE, from `hansa advise --json`")
    try:
        advice = json.loads(args.advice.read_text(encoding="utf-8"))["advice"]
        fields = ("kind", "subject", "actor", "text")
        pieces = [tuple(piece[name] for name in fields) for piece in advice]
    except OSError as error:
        raise UsageError(f"--advice {args.advice}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{args.advice} is not what `hansa advise --json` prints") from None
    nodes = NodeDirectory(api)
    links = [subject for _, subject, actor, _ in pieces if actor == "manager"]
    numbers = {name: nodes.named(name) for subject in links for name in subject}
    for kind, subject, actor, text in pieces:
        if actor == "manager":
            a, b = (numbers[name] for name in subject)
            _link(api, a, b) if kind == "add link" else _unlink(api, a, b)
        print(printable(f"{'done' if actor == 'manager' else f'left to {actor}'}: {text}"))
    return 0


def _one_node(api: ManagerRequests, args: argparse.Namespace) -> tuple[NodeDirectory, int]:
    if len(args.nodes) != 1:
        raise UsageError(f"hansa topology {args.action} needs one node")
    nodes = NodeDirectory(api)
    return nodes, nodes.find(args.nodes[0])


def _two_nodes(
    api: ManagerRequests, args: argparse.Namespace
) -> tuple[NodeDirectory, tuple[int, int]]:
    if len(args.nodes) != 2:
        raise UsageError(f"hansa topology {args.action} needs two nodes, such as 3 7")
    nodes = NodeDirectory(api)
    return nodes, (nodes.find(args.nodes[0]), nodes.find(args.nodes[1]))


ACTIONS: dict[str, Callable[[ManagerRequests, argparse.Namespace], int]] = {
    "show": _show,
    "plan": _plan,
    "add": _add,
    "remove": _remove,
    "drain": _drain,
    "leave": _leave,
    "apply": _apply_advice,
}


# ---------------------------------------------------------------- comparison and simulation


def _compare(args: argparse.Namespace) -> int:
    trial = TopologyTrial(args.count, args.degree_max, failed_ratio=args.failed, seed=args.seed)
    scores = compare_rules(trial)
    if args.json:
        print(json.dumps([asdict(score) for score in scores], indent=2))
    else:
        _show_scores(trial, scores)
    return 0


def _churn(args: argparse.Namespace) -> int:
    from hansa.simulator.scenarios.churn import ChurnOptions, run_churn
    from hansa.simulator.world.managed_links import ManagerMode

    modes = tuple(ManagerMode(mode) for mode in args.manager_mode) or tuple(ManagerMode)
    duration_s = 60 * args.minutes
    result = run_churn(
        ChurnOptions(
            args.count, duration_s, args.fault_interval, modes, args.degree_max, seed=args.seed
        )
    )
    if args.json:
        print(json.dumps(asdict(result), indent=2))
    else:
        print(
            f"{args.count} nodes, {args.minutes:g} minutes, manager {', '.join(modes)},"
            f" seed {args.seed}: {result.joined} joined, {result.failed} failed\n"
            f"{result.splits} splits, {result.split_s_max:g} s at most;"
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
        f" {trial.failed_ratio:.0%} of them fail at once, {trial.failure_rounds} times each;"
        f" seed {trial.seed}"
    )
    table = Table(
        "rule", "links", "degree, at most", "diameter", "hops", "round trip",
        "connected", "after repair", box=None, header_style="bold",
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
"""Actions without a manager."""


def _parser() -> Parser:
    made = Parser(
        "hansa topology",
        "Show and change the graph that a manager keeps; or compare rules for making one.",
        EXAMPLES,
    )
    made.add_argument("action", type=one_of((*ACTIONS, *LOCAL_ACTIONS)), help="see the examples")
    made.add_argument("manager", nargs="?", metavar="URL", help="URL of the manager")
    made.add_argument(
        "nodes", nargs="*", metavar="NODE",
        help="nodes, by number, name or agent's id; id:3 or name:3 if 3 is a number and a name",
    )  # fmt: skip
    made.add_argument(
        "--format", type=one_of(FORMATS), default="text", metavar="text|json|dot|svg",
        help="show: output format (default text)",
    )  # fmt: skip
    made.add_argument("--output", type=path, metavar="FILE", help="show: write to a file")
    made.add_argument(
        "--advice", type=path, metavar="FILE", help="apply: the output of `hansa advise --json`"
    )
    made.add_argument("--undo", action="store_true", help="drain: end it")
    made.add_argument(
        "--nodes", dest="count", type=whole_number(3, 200, "nodes"), default=30, metavar="N",
        help="compare, churn: number of nodes (default 30)",
    )  # fmt: skip
    made.add_argument(
        "--degree-max", type=whole_number(3, 64, "neighbours"), default=5, metavar="N",
        help="compare, churn: largest number of neighbours (default 5)",
    )  # fmt: skip
    made.add_argument(
        "--failed", type=decimal_number(0.0, 0.9), default=0.2, metavar="RATIO",
        help="compare: ratio of nodes that fail at once (default 0.2)",
    )  # fmt: skip
    made.add_argument(
        "--seed", type=arguments.seed, default=1, metavar="N",
        help="compare, churn: seed of positions and faults (default 1)",
    )  # fmt: skip
    made.add_argument(
        "--minutes", type=decimal_number(1, 1440, "minutes"), default=10.0, metavar="N",
        help="churn: virtual minutes with faults (default 10)",
    )  # fmt: skip
    made.add_argument(
        "--fault-interval", type=decimal_number(0.5, 3600, "s"), default=10.0, metavar="S",
        help="churn: mean seconds between two faults (default 10)",
    )  # fmt: skip
    made.add_argument(
        "--manager-mode", action="append", default=[], type=one_of(("up", "absent", "wrong")),
        metavar="up|absent|wrong",
        help="churn: state of the manager; several in turn (default all three)",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="compare, churn: print JSON")
    return made
