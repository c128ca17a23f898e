"""The `hansa` command: finds the command that was asked for and turns its end into an exit code.

Exit codes: 0 all is well, 1 a promise was broken, 2 bad input (one line on stderr says what to
change), 70 a fault of ours, 74 the disk is full, 130 stopped with Ctrl-C, 141 the reader of our
output went away.

Only the command that runs is imported, so that `hansa --help` answers at once.
"""

import difflib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from hansa import __version__
from hansa.errors import UsageError
from hansa.launcher import command_line
from hansa.printable import printable

TRACEBACK = "HANSA_TRACEBACK"
"""The variable that makes a fault of ours show its traceback."""

COMMANDS = {
    "advise": "say what a recorded federation would better change, and what that brings",
    "agent": "run one agent beside its broker",
    "chaos": "break a live federation on purpose, and account for every publication",
    "demo": "watch real brokers carry a message once, lose an agent and a broker, and heal",
    "doctor": "check a broker, and print what its configuration lacks",
    "experiment": "compare the routing strategies; sweep thousands of simulations over Spark",
    "manager": "run the topology manager: nodes join, are watched, and get their links",
    "pipeline": "make tables from what was recorded, with Spark, and ask them",
    "report": "show what was recorded as one page with plots",
    "simulate": "run a federation on virtual time: the papers' scenarios, or any topology",
    "status": "show neighbours, members, topics with their core, interest, counters",
    "top": "the same, live",
    "topology": "show, export and change the graph that a manager keeps; compare rules for it",
    "up": "start a whole federation of real Mosquittos and agents on this machine",
}

LINE_ENDS = "\n\t"
"""Control characters that an error message may hold."""

HELP = f"""Usage: hansa COMMAND [OPTIONS]

Hansa joins MQTT brokers that stay as they are into one federation: a message published at any
broker reaches the subscribers of all, over any graph of links, and survives the loss of nodes.

Commands:
  demo        {COMMANDS["demo"]}
  up          {COMMANDS["up"]}
  agent       {COMMANDS["agent"]}
  doctor      {COMMANDS["doctor"]}
  status      {COMMANDS["status"]}
  top         {COMMANDS["top"]}
  simulate    {COMMANDS["simulate"]}
  experiment  {COMMANDS["experiment"]}
  manager     {COMMANDS["manager"]}
  topology    {COMMANDS["topology"]}
  chaos       {COMMANDS["chaos"]}
  pipeline    {COMMANDS["pipeline"]}
  report      {COMMANDS["report"]}
  advise      {COMMANDS["advise"]}

  -h, --help  this; `hansa COMMAND --help` explains a command and its options
  --version   print the version

Examples:
  hansa demo                                    a minute that shows what Hansa does
  hansa up ring:3 --ready-file up.json          three brokers and agents, until Ctrl-C
  hansa status up.json                          what they say of themselves
  hansa doctor localhost:1883                   is this broker ready for an agent?
  hansa simulate --list                         the scenarios, with what each paper claims
  hansa simulate --scenario spohn-2020          the six brokers of the first paper, checked
  hansa simulate --topology grid:3x3 --seed 7   a grid of nine, publications and all
  hansa simulate --topology random:25,4 --faults crashes=3,cuts=2 --runs 100
                                                a hundred seeds of random faults, on all cores
  hansa experiment compare                      what each routing strategy costs, and when it pays
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without ◆ gets a question mark
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
    except Exception as fault:  # noqa: BLE001  # whatever it is, it must not look like bad input
        if isinstance(fault, OSError) and fault.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"hansa: cannot write: {os.strerror(fault.errno).lower()}", file=sys.stderr)
            _silence_stdout()
            return 74
        _report_internal_error(fault)
        return 70
    return code


def _silence_stdout() -> None:
    """Python flushes it once more on its way out, and that must not fail again."""
    with suppress(OSError, ValueError):  # under a test it may be no file at all
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_internal_error(fault: Exception) -> None:
    """Say that the fault is ours; its traceback is for those who ask for it."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(fault)
    what = " ".join([f"{type(fault).__name__}: {fault}", *getattr(fault, "__notes__", ())])
    shown = printable(what, keep=LINE_ENDS)
    print(f"hansa: this is a fault of Hansa, not yours: {shown}", file=sys.stderr)
    print(
        f"hansa: please report it where you got Hansa, with what {TRACEBACK}=1 before the same"
        " command prints",
        file=sys.stderr,
    )


def _command(given: list[str]) -> int:
    match given:
        case [] | ["-h" | "--help" | "help", *_]:
            print(HELP, end="")
            return 0
        case ["--version", *_]:
            print(f"hansa {__version__}")
            return 0
        case [name, *rest] if name in COMMANDS:
            module = importlib.import_module(f"hansa.cli.{name}")
            code: int = module.run(rest)
            return code
        case [name, *_]:
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(COMMANDS)}."
            raise UsageError(f"there is no command {name!r}; {hint} See `{command_line('--help')}`")
    raise AssertionError(given)
