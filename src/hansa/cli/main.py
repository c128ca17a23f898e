"""The `hansa` command: dispatches to a module of this package and maps exceptions to exit codes.

Exit codes: 0 success, 1 a promise was broken or a check failed, 2 bad input (one line on stderr
says what to change), 70 internal error, 74 disk full, 130 Ctrl-C, 141 stdout was closed.

Only the module of the command is imported, so that `hansa --help` is fast.
"""

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from hansa import __version__, compiled_core
from hansa.errors import UsageError
from hansa.launcher import command_line
from hansa.printable import printable

TRACEBACK = "HANSA_TRACEBACK"
"""Environment variable that shows the traceback of an internal error."""

COMMANDS = {
    "advise": "propose changes to a recorded federation, with their predicted effect",
    "agent": "run one agent beside its broker",
    "alarm": "list the active alarms of all nodes",
    "ca": "the certificate authority of a federation: make it, sign, renew, revoke",
    "chaos": "inject faults into a live federation, and account for every publication",
    "context": "save how to reach a federation, so that commands need no addresses",
    "demo": "three real brokers: exactly one delivery, a killed agent, a killed broker",
    "doctor": "check a broker or a running federation, and print what to change",
    "experiment": "compare routing strategies; run thousands of simulations on Spark",
    "init": "set up the agent of this host: check its broker, make or join a federation",
    "invite": "let one new node join a federation: print a token and sign its certificate",
    "join": "get the certificate of the agent on this machine, with a token or a file",
    "link": "list the links of a federation; add and remove links of an agent",
    "manager": "run the topology manager: it registers nodes, monitors them, plans links",
    "node": "list the nodes of a federation, show one, let one leave",
    "pipeline": "make tables from telemetry and journals with Spark, and query them",
    "quarantine": "list and release nodes that an agent refuses for misbehaviour",
    "report": "show the tables as one page with plots",
    "simulate": "run a federation in virtual time: the papers' scenarios, or any topology",
    "status": "show nodes, links, topics, counters and alarms of a federation",
    "top": "the same as status, live, with rates",
    "topic": "list the filters of clients with their nodes; trace a topic",
    "topology": "show, export and change the graph of a manager; compare rules for graphs",
    "trace": "show the path of a topic, hop by hop, with the reason at each node",
    "up": "start a federation of real Mosquittos and agents on this machine",
}

LINE_ENDS = "\n\t"
"""Control characters that are kept in error messages."""

HELP = f"""Usage: hansa COMMAND [OPTIONS]

Hansa joins unmodified MQTT brokers into one federation: a message published at any broker reaches
the subscribers at all brokers, over any graph of links, also after failures of nodes and links.

Try it:
  demo        {COMMANDS["demo"]}
  up          {COMMANDS["up"]}
  simulate    {COMMANDS["simulate"]}

Set up a site:
  doctor      {COMMANDS["doctor"]}
  init        {COMMANDS["init"]}
  ca          {COMMANDS["ca"]}
  invite      {COMMANDS["invite"]}
  join        {COMMANDS["join"]}
  agent       {COMMANDS["agent"]}

Operate a federation:
  status      {COMMANDS["status"]}
  top         {COMMANDS["top"]}
  node        {COMMANDS["node"]}
  link        {COMMANDS["link"]}
  topic       {COMMANDS["topic"]}
  trace       {COMMANDS["trace"]}
  alarm       {COMMANDS["alarm"]}
  quarantine  {COMMANDS["quarantine"]}
  context     {COMMANDS["context"]}

Plan links:
  manager     {COMMANDS["manager"]}
  topology    {COMMANDS["topology"]}

Analyse recordings:
  pipeline    {COMMANDS["pipeline"]}
  report      {COMMANDS["report"]}
  advise      {COMMANDS["advise"]}

Test and compare:
  chaos       {COMMANDS["chaos"]}
  experiment  {COMMANDS["experiment"]}

Options:
  -h, --help  show this; `hansa COMMAND --help` explains a command and its options
  --version   print the version, and whether the core is compiled or pure Python

Examples:
  hansa demo                                    shows in a minute what Hansa does
  hansa up ring:3 --ready-file up.json          three brokers and agents, until Ctrl-C
  hansa status up.json                          their status
  hansa doctor localhost:1883                   is this broker ready for an agent?
  hansa simulate --list                         the scenarios, with the claims of the papers
  hansa simulate --scenario spohn-2020          the six brokers of the first paper, checked
  hansa simulate --topology grid:3x3 --seed 7   a grid of nine brokers
  hansa simulate --topology random:25,4 --faults crashes=3,cuts=2 --runs 100
                                                a hundred seeds of random faults, on all cores
  hansa experiment compare                      cost of each routing strategy
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # terminals without ◆ show a question mark
    try:
        code = _command(given)
        sys.stdout.flush()
    except UsageError as problem:
        print(f"hansa: {printable(str(problem), keep=LINE_ENDS)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hansa: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _silence_stdout()
        return 141
    except Exception as fault:  # noqa: BLE001  # a bug must not look like bad input
        if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"hansa: cannot write: {os.strerror(fault.errno).lower()}", file=sys.stderr)
            _silence_stdout()
            return 74
        _report_internal_error(fault)
        return 70
    return code


def _silence_stdout() -> None:
    """Redirect stdout to /dev/null: Python flushes it at exit, which would fail again."""
    with suppress(OSError, ValueError):  # in tests stdout may have no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_internal_error(fault: Exception) -> None:
    if os.environ.get(TRACEBACK):
        traceback.print_exception(fault)
    text = " ".join([f"{type(fault).__name__}: {fault}", *getattr(fault, "__notes__", ())])
    print(f"hansa: internal error: {printable(text, keep=LINE_ENDS)}", file=sys.stderr)
    print(
        f"hansa: please report it, with the output of the same command after {TRACEBACK}=1",
        file=sys.stderr,
    )


def _command(given: list[str]) -> int:
    match given:
        case [] | ["-h" | "--help" | "help", *_]:
            print(HELP, end="")
            return 0
        case ["--version", *_]:
            core = "compiled" if compiled_core.is_enabled() else "pure"
            print(f"hansa {__version__} ({core})")
            return 0
        case [name, *rest] if name in COMMANDS:
            if given[:2] == ["doctor", "federation"]:
                name, rest = "federation_doctor", rest[1:]
            module = importlib.import_module(f"hansa.cli.{name}")
            code: int = module.run(rest)
            return code
        case [name, *_]:
            import difflib  # 0.2 MB that only a wrong name needs

            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}."
            raise UsageError(f"there is no command {name!r}; {hint} See `{command_line('--help')}`")
    raise AssertionError(given)
