"""Runs the cases of a sweep on Spark and appends their rows to the table of a lake.

Rows are appended every `SAVE_INTERVAL_S` seconds and when the run ends, also by an exception, so an
interruption loses at most the cases that were running.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from hansa import __version__
from hansa.errors import UsageError
from hansa.experiments.fan_out import Row, run_on_executors
from hansa.experiments.runs import case_key, make_run_row
from hansa.experiments.sweep import SimulationSweep, SweepCase
from hansa.launcher import command_line
from hansa.simulator.request import SimulationRequest, make_options, run_request

if TYPE_CHECKING:
    from hansa.experiments.run_table import RunTable

SAVE_INTERVAL_S = 15.0

ParseRequest = Callable[[Sequence[str]], SimulationRequest]
"""Parses the options of `hansa simulate`; it runs on executors, which must be able to import it."""


def check_cases(sweep: SimulationSweep, parse: ParseRequest) -> None:
    """Raise UsageError for the first combination that cannot run, before Spark is started."""
    for case in {case.parameters: case for case in sweep.cases}.values():
        try:
            request = parse(case.arguments)
            if request.scenario is None:
                make_options(request, case.seed)
        except UsageError as error:
            raise UsageError(f"{case_key(case)}: {error}") from error


def run_case(parse: ParseRequest, sweep: str, case: SweepCase) -> Row:
    """Run one case, on an executor; an exception names the command that repeats it."""
    try:
        result = run_request(parse(case.arguments), case.seed).result
    except Exception as fault:
        fault.add_note(f"while running: {command_line('simulate', *case.arguments)}")
        raise
    return make_run_row(case, sweep, __version__, result)


def run_cases(
    name: str,
    cases: Sequence[SweepCase],
    parse: ParseRequest,
    table: "RunTable",
    context: Any,
    on_rows: Callable[[int], None],
) -> None:
    """Run cases of the sweep `name` and append their rows; `on_rows` gets the count of new rows."""
    unsaved: list[Row] = []
    saved_at = time.monotonic()
    with closing(run_on_executors(context, cases, partial(run_case, parse, name))) as incoming:
        try:
            for rows in incoming:
                unsaved += rows
                on_rows(len(rows))
                if time.monotonic() - saved_at >= SAVE_INTERVAL_S:
                    table.append(unsaved)
                    unsaved, saved_at = [], time.monotonic()
        finally:
            table.append(unsaved)
