"""Campaigns: which cases are missing, and what a run records."""

from dataclasses import replace

import pytest

from hansa import __version__
from hansa.errors import UsageError
from hansa.simulator import campaign as module
from hansa.simulator.campaign import (
    Campaign,
    CampaignCase,
    CampaignRun,
    StrategySummary,
    campaign_code,
    parse_seeds,
    run_case,
)
from hansa.simulator.run import simulate
from hansa.simulator.scenarios.sampling import random_options
from hansa.source_digest import source_commit


def result_of(seed: int, strategy: str = "mesh", *violations: str) -> CampaignRun:
    return CampaignRun(
        *(seed, strategy, "0.2.0", None, campaign_code(), violations, 0.5),
        faults=3,
        promised=9,
        delivered=8,
        reported=1,
    )


def test_run_records_the_result_of_the_simulation_and_its_code() -> None:
    recorded = run_case(CampaignCase(580, "paths"))
    result = simulate(random_options(580, "paths"))
    assert result.guaranteed is not None
    assert replace(recorded, seconds=0.0) == CampaignRun(
        580,
        "paths",
        __version__,
        source_commit(),
        campaign_code(),
        violations=(),
        seconds=0.0,
        fingerprint=result.fingerprint,
        virtual_s=round(result.virtual_s, 3),
        faults=1 + 1 + 2 + 1 + 2,
        publications=result.publications,
        promised=result.guaranteed.promised,
        delivered=result.guaranteed.delivered,
        reported=result.guaranteed.reported,
    )
    assert recorded.seconds > 0


def test_exception_is_recorded_as_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(module, "simulate", fail)
    recorded = run_case(CampaignCase(1, "mesh"))
    assert recorded.violations == ("internal error: ZeroDivisionError: by zero",)


def test_cases_are_played_seed_by_seed_without_those_in_the_ledger() -> None:
    known = [result_of(4), result_of(5, "paths"), result_of(6), result_of(4, "tree-flood")]
    campaign = Campaign(range(4, 6), ["mesh", "paths"], known)
    assert campaign.missing == [CampaignCase(4, "paths"), CampaignCase(5, "mesh")]
    campaign.add(result_of(5))
    assert campaign.missing == [CampaignCase(4, "paths")]
    assert [run.case for run in campaign.runs] == [
        CampaignCase(4, "mesh"),
        CampaignCase(5, "mesh"),
        CampaignCase(5, "paths"),
    ]


def test_strategies_in_turn_play_each_seed_once() -> None:
    campaign = Campaign(range(4, 8), ["mesh", "paths", "tree-flood"], [result_of(6)], in_turn=True)
    assert campaign.missing == [
        CampaignCase(4, "paths"),
        CampaignCase(5, "tree-flood"),
        CampaignCase(7, "paths"),
    ]


def test_runs_of_other_code_do_not_count() -> None:
    campaign = Campaign(range(1), ["mesh"], [replace(result_of(0), code="other")])
    assert (campaign.missing, campaign.runs) == ([CampaignCase(0, "mesh")], [])


def test_summary_adds_up_each_strategy_and_all() -> None:
    known = [result_of(0), result_of(1, "mesh", "a loop", "a loss"), result_of(0, "paths")]
    campaign = Campaign(range(2), ["mesh", "paths"], known)
    assert [replace(each, seconds=0.0) for each in campaign.summaries()] == [
        StrategySummary("mesh", 2, 1, faults=6, promised=18, delivered=16, reported=2),
        StrategySummary("paths", 1, 0, faults=3, promised=9, delivered=8, reported=1),
        StrategySummary("all", 3, 1, faults=9, promised=27, delivered=24, reported=3),
    ]
    assert campaign.failed == [known[1]]
    assert [each.strategy for each in Campaign(range(2), ["mesh"], known).summaries()] == ["mesh"]


def test_range_of_seeds_includes_both_ends() -> None:
    assert parse_seeds("0-1999") == range(2000)
    assert parse_seeds("7-7") == range(7, 8)


@pytest.mark.parametrize("text", ["", "5", "5-", "-5", "5-4", "a-b", "1-2-3", "0-99999999", "²-³"])
def test_other_ranges_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="seeds"):
        parse_seeds(text)
