"""The papers' experiments, run now: their claims and our numbers, for the report."""

from collections.abc import Callable

from hansa.pipeline.report.page import ReportedClaim, ReportedPaper
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.papers import bevilaqua, machado, spohn
from hansa.simulator.scenarios.catalogue import run_scenario

SEED = 1


def run_papers(on_progress: Callable[[str], None]) -> list[ReportedPaper]:
    """Run every scenario of the papers; `on_progress` gets the name of the one that starts."""
    papers = []
    for scenario in (*spohn.SCENARIOS, *machado.SCENARIOS, *bevilaqua.SCENARIOS):
        on_progress(scenario.name)
        result = run_scenario(scenario, ProtocolSettings(), SEED)
        claims = [ReportedClaim(row.what, row.claimed, row.ours, row.holds) for row in result.rows]
        papers.append(ReportedPaper(f"{scenario.name}: {scenario.title}", claims))
    return papers
