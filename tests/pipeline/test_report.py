"""Plots and page of the report, without Spark: well-formed, bounded, complete."""

import math
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: `./run test` installs it")

from hansa.pipeline.report import plots, topology
from hansa.pipeline.report.facts import (
    INCIDENT_RECORDS,
    OVER_TIME,
    ROWS,
    TABLES,
    ReportData,
    Rows,
    RunFacts,
)
from hansa.pipeline.report.page import ReportedClaim, ReportedPaper, render_page
from hansa.pipeline.report.sweeps import MEASURES, SweepSummary


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (1234567, "1,234,567"),
        (0.012345, "0.0123"),
        (99.96, "100"),
        (3.0, "3"),
    ],
)
def test_numbers_have_three_significant_digits(value, shown):
    assert plots.format_number(value) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2.5e12, "2,500 GB")]
)
def test_byte_counts_have_a_unit(count, shown):
    assert plots.format_bytes(count) == shown


NAMES = [f"<n&{number}>" for number in range(60)]


@pytest.mark.parametrize("count", [0, 1, 60])
def test_plots_are_well_formed_with_any_names_and_bounded(count):
    names = NAMES[:count]
    pairs = {(one, other): float(len(one)) for one in names for other in names[:3]}
    drawn = [
        plots.bars("t", [(name, [1.0, 0.0]) for name in names], "u"),
        plots.ranges("t", [(name, 1.0, 2.0, 3.0) for name in names], "ms"),
        plots.heat("t", names, pairs, "u", ("from", "to")),
        plots.columns("t", [(name, 0.5) for name in names], 1.0, "limit"),
        plots.lines("t", {name: [(1.0, 2.0), (5.0, 0.0)] for name in names}, "nodes"),
        plots.timeline("t", [(1.0, name, None if i % 2 else 0.5) for i, name in enumerate(names)]),
        topology.draw_topology(
            "t", names, {(a, b): 1.0 for a, b in zip(names, names[1:], strict=False)}
        ),
    ]
    for text in drawn:
        assert ET.fromstring(text).tag == "svg"
    assert drawn[0].count("<rect") <= 2 * plots.ROWS_MAX


def test_neighbours_are_drawn_nearer_than_others():
    """A grid of 3 by 3 keeps its shape: linked nodes are nearer than all others."""
    nodes = [f"{x}{y}" for x in range(3) for y in range(3)]
    links = [
        (a, b)
        for a in nodes
        for b in nodes
        if a < b and abs(int(a[0]) - int(b[0])) + abs(int(a[1]) - int(b[1])) == 1
    ]
    places = topology._place_nodes(nodes, links)  # noqa: SLF001

    def apart(a, b):
        return math.dist(places[a], places[b])

    longest = max(apart(a, b) for a, b in links)
    others = [(a, b) for a in nodes for b in nodes if a < b and (a, b) not in links]
    assert longest < min(apart(a, b) for a, b in others)


def test_claims_of_papers_are_marked_as_confirmed_or_not():
    claims = [
        ReportedClaim("frames", "<= 2·l", "14", True),
        ReportedClaim("time", "90 s", "1 < 2", False),
    ]
    text = render_page(ReportData([], 0, [], []), [ReportedPaper("Spohn & Co", claims)])
    assert "Spohn &amp; Co" in text
    assert '<td class="good">14</td>' in text
    assert '<td class="bad">1 &lt; 2</td>' in text


def test_totals_of_a_large_table_include_rows_that_are_not_shown():
    rows = [
        {
            "expected": 5,
            "delivered": 5,
            "lost": 0,
            "delivered_repeatedly": 0,
            "origin_id": "a",
            "node_id": "b",
        }
    ]
    tables: dict[str, Rows] = {name: [] for name in TABLES} | {"delivery": rows}
    totals = {
        "delivery": {
            ROWS: 30_000,
            "expected": 90_000,
            "delivered": 80_000,
            "delivered_repeatedly": None,
        }
    }
    facts = RunFacts("live", "Live", tables, {}, totals)
    assert facts.total("delivery", "expected") == 90_000
    assert facts.total("delivery", "delivered_repeatedly") == 0
    text = render_page(ReportData([facts], 1, [], []), [])
    assert "80,000 of 90,000" in text
    assert "Of 30,000 rows of the table delivery the 1 largest are shown." in text


def test_client_deliveries_are_shown_with_counts_and_interruptions():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    key = {"incarnation": 1, "origin_id": "b", "duplicates": 0}
    killed = {
        **key,
        "disturbance": "kill agent a",
        "recorded_at": start + timedelta(seconds=2),
        "published": 241,
    }
    deliveries: Rows = [
        {
            **key,
            "record_sequence": 1,
            "disturbance": "no fault",
            "recorded_at": start,
            "target_id": "c",
        }
        | {"published": 50, "arrived": 50, "lost": 0, "interruption_s": None},
        {
            **killed,
            "record_sequence": 2,
            "target_id": "c",
            "arrived": 239,
            "lost": 2,
            "interruption_s": 0.058,
        },
        {
            **killed,
            "record_sequence": 3,
            "target_id": "a",
            "arrived": 0,
            "lost": 241,
            "interruption_s": None,
        },
        {
            **killed,
            "record_sequence": 4,
            "target_id": "b",
            "arrived": 241,
            "lost": 0,
            "interruption_s": 0.0,
        },
    ]
    fault = {
        "disturbance": "kill agent a",
        "recorded_at": start + timedelta(seconds=2),
        "record_sequence": 1,
        "changes": 4,
    }
    tables: dict[str, Rows] = {name: [] for name in TABLES} | {
        "client_deliveries": deliveries,
        "convergence": [{**fault, "agreed_after_s": None, "settled_after_s": 2.5}],
        "runs": [{"started_at": start}],
    }
    text = render_page(ReportData([RunFacts("live", "Live", tables, {}, {})], 1, [], []), [])
    assert "<b>530 of 773</b><span>arrived at clients of other brokers</span>" in text
    for row in (
        ("no fault", "b → c", "50", "50", "0", "0", ""),
        ("kill agent a", "b → c", "241", "239", "2", "0", "58 ms"),
        ("kill agent a", "b → a", "241", "0", "241", "0", "until the next event"),
        ("kill agent a", "b → b", "241", "241", "0", "0", "none"),
    ):
        assert "".join(f"<td>{cell}</td>" for cell in row) in text
    settled = text.partition("How long do nodes take to agree again?")[2]
    assert "Deliveries do not wait for that; the longest was 2.50 s." in settled


def test_sweep_is_drawn_as_lines_if_sizes_differ_else_as_bars():
    grown = SweepSummary("big", 40, {name: {"mesh": [(5, 1.0), (10, 2.0)]} for name in MEASURES})
    flat = SweepSummary(
        "flat", 2, {name: {"mesh": [(5, 1.0)], "paths": [(5, 0.0)]} for name in MEASURES}
    )
    text = render_page(ReportData([], 0, [], [grown, flat]), [])
    assert "Sweep big: 40 simulations" in text
    assert text.count("<polyline") == len(MEASURES)
    assert text.count("in federations of 5 nodes") == len(MEASURES)


def test_alarms_are_shown_over_time_and_as_incidents():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    counted = dict.fromkeys(("publications", "deliveries", "p50_ms", "p99_ms", "dropped", "lost"))
    alarm = {"node_id": "a", "peer_id": None, "alarm": "state not saved"}
    tables: dict[str, Rows] = {name: [] for name in TABLES} | {
        OVER_TIME: [{**counted, "at_s": at, "step_s": 1, "publications": 5} for at in (0, 1, 2)],
        INCIDENT_RECORDS: [
            {**alarm, "kind": "alarm_raised", "recorded_at": start + timedelta(seconds=1)},
            {**alarm, "kind": "alarm_cleared", "recorded_at": start + timedelta(seconds=3)},
        ],
        "runs": [{"started_at": start}],
    }
    facts = RunFacts("live", "Live", tables, {"a": "gateway"}, {})
    text = render_page(ReportData([facts], 1, [], []), [])
    assert "Active alarms were raised and not cleared before that point." in text
    assert "1 × alarm: from the record of an agent until it cleared the alarm" in text
    assert "alarm state not saved: gateway" in text
    assert "2.00 s" in text
