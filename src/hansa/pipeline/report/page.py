"""Renders the report as one HTML file that needs no network, with dark mode and small screens."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from hansa import __version__
from hansa.pipeline.report import cards
from hansa.pipeline.report.facts import ReportData, Rows, RunFacts
from hansa.pipeline.report.plots import format_bytes, format_number
from hansa.pipeline.report.sweeps import SweepSummary

STYLE = """
:root { --page:#f6f7f9; --card:#fff; --ink:#1c2330; --dim:#5b6574; --line:#e3e7ec; --one:#2f6fb2;
  --two:#e0812b; --bad:#b3261e; --good:#1f7a45; --on:#fff }
@media (prefers-color-scheme: dark) { :root { --page:#12161c; --card:#1b212a; --ink:#e8ebf0;
  --dim:#9aa5b4; --line:#2c3440; --one:#5f9ee0; --two:#f0a050; --bad:#ff8a80; --good:#7ccf9b;
  --on:#0c1118 } }
* { box-sizing:border-box } body { margin:0; background:var(--page); color:var(--ink);
  font:16px/1.45 system-ui, sans-serif }
main { max-width:1080px; margin:0 auto; padding:24px 16px 64px }
h1 { font-size:1.7rem; margin:.2em 0 } h2 { font-size:1.25rem; margin:2em 0 .6em }
h3 { font-size:1.02rem; margin:0 } p { margin:.3em 0 .8em; color:var(--dim); font-size:.92rem }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(116px,1fr)); gap:12px }
.tile { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:12px }
.tile b { display:block; font-size:1.3rem; overflow-wrap:anywhere }
.tile span { color:var(--dim); font-size:.8rem }
.cards { columns:440px 2; column-gap:16px; margin-top:16px }
.card { background:var(--card); border:1px solid var(--line); border-radius:12px; padding:16px;
  margin-bottom:16px; break-inside:avoid }
svg { width:100%; height:auto; display:block } svg text { font-size:13px; fill:var(--ink) }
svg .tick { fill:var(--dim); font-size:12px } svg .limit-text { fill:var(--bad); font-size:12px }
.grid { stroke:var(--line) } .part0 { fill:var(--one) } .part1 { fill:var(--two) }
.range { stroke:var(--one); stroke-width:2.5 } .mark { stroke:var(--one); stroke-width:2.5 }
.limit { stroke:var(--bad); stroke-dasharray:5 4 } .cell { fill:var(--one) }
.none { fill:var(--line); fill-opacity:.35 } .link { stroke:var(--one); stroke-opacity:.55 }
.node { fill:var(--ink) } svg .on { fill:var(--on); font-size:11px }
svg .value { font-size:12px } .line { fill:none; stroke-width:2.5 }
.line0 { stroke:var(--one) } .dot0 { fill:var(--one) } .line1 { stroke:var(--two) }
.dot1 { fill:var(--two) } .line2 { stroke:#3f9b57 } .dot2 { fill:#3f9b57 }
.line3 { stroke:#b64b4b } .dot3 { fill:#b64b4b } .line4 { stroke:#8d6fc0 } .dot4 { fill:#8d6fc0 }
.line5 { stroke:#2aa3a3 } .dot5 { fill:#2aa3a3 } .line6 { stroke:#a0783c } .dot6 { fill:#a0783c }
.line7 { stroke:#7f8794 } .dot7 { fill:#7f8794 }
details { margin-top:10px; font-size:.85rem } summary { cursor:pointer; color:var(--dim) }
.wide { overflow-x:auto } table { border-collapse:collapse; width:100%; margin-top:6px }
th,td { text-align:left; padding:4px 10px 4px 0; border-bottom:1px solid var(--line);
  font-variant-numeric:tabular-nums } th { color:var(--dim); font-weight:600 }
.tight { font-size:.82rem } .tight th,.tight td { white-space:nowrap; padding-right:6px }
td.good { color:var(--good) } td.bad { color:var(--bad) }
footer { color:var(--dim); font-size:.8rem; margin-top:32px }
"""


@dataclass(frozen=True, slots=True)
class ReportedClaim:
    """A number of a paper and the measured one."""

    quantity: str
    paper_value: str
    measured_value: str
    is_confirmed: bool | None
    """None if the paper makes no checkable claim."""


@dataclass(frozen=True, slots=True)
class ReportedPaper:
    """The reproduced table of a paper."""

    title: str
    claims: Sequence[ReportedClaim]


def render_page(
    report: ReportData, papers: Sequence[ReportedPaper], title: str = "Federation report"
) -> str:
    """Return the page as HTML; the papers' numbers are its appendix."""
    parts = [_run(facts) for facts in report.runs]
    if report.recorded:
        parts.append(_recorded(report.recorded))
    if report.run_count > len(report.runs):
        rest = report.run_count - len(report.runs)
        parts.append(f"<p>{rest:,} more runs are in the lake and not on this page.</p>")
    parts += [_sweep(sweep) for sweep in report.sweeps]
    parts += [_papers(papers)] if papers else []
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>"
        + "".join(parts)
        + f"<footer>Hansa {escape(__version__)}, from the gold tables of a lake; html with Spark."
        "</footer></main></body></html>\n"
    )


def _sweep(sweep: SweepSummary) -> str:
    title = f"Sweep {sweep.name}: {format_number(sweep.simulations)} simulations"
    drawn = "".join(cards.sweep_cards(sweep))
    return f'<h2>{escape(title)}</h2><div class="cards">{drawn}</div>'


def _run(facts: RunFacts) -> str:
    left_out = "".join(
        f"<p>Of {total:,} rows of the table {escape(name)} the {shown:,} largest are shown.</p>"
        for name, (shown, total) in facts.left_out().items()
    )
    return (
        f"<h2>{escape(facts.title)}</h2>{_period(facts)}{cards.tiles(facts)}{left_out}"
        f'<div class="cards">{"".join(cards.run_cards(facts))}</div>'
    )


def _period(facts: RunFacts) -> str:
    """Return when a live federation was recorded; a simulation has no date."""
    runs = [row for row in facts.tables["runs"] if row.get("ended_at") and not row["simulated"]]
    return "".join(
        f"<p>{row['started_at']:%Y-%m-%d %H:%M} to {row['ended_at']:%Y-%m-%d %H:%M} UTC</p>"
        for row in runs
    )


def _recorded(rows: Rows) -> str:
    html = cards.table(
        ("topic", "messages", "bytes", "brokers", "first", "last"),
        (
            (
                row["topic"],
                format_number(row["messages"]),
                format_bytes(row["bytes"]),
                format_number(row["origins"]),
                f"{row['first_at']:%Y-%m-%d %H:%M:%S}",
                f"{row['last_at']:%Y-%m-%d %H:%M:%S}",
            )
            for row in rows
        ),
    )
    return f'<h2>Recorded publications</h2><section class="card">{html}</section>'


def _papers(papers: Sequence[ReportedPaper]) -> str:
    html = []
    for paper in papers:
        rows = "".join(
            f"<tr><td>{escape(claim.quantity)}</td><td>{escape(claim.paper_value)}</td>"
            f'<td class="{_verdict(claim.is_confirmed)}">{escape(claim.measured_value)}</td></tr>'
            for claim in paper.claims
        )
        html.append(
            f'<section class="card"><h3>{escape(paper.title)}</h3><div class="wide"><table><thead>'
            "<tr><th></th><th>paper</th><th>Hansa</th></tr></thead>"
            f"<tbody>{rows}</tbody></table></div></section>"
        )
    return f'<h2>Reproduced papers</h2><div class="cards">{"".join(html)}</div>'


def _verdict(is_confirmed: bool | None) -> str:
    return "" if is_confirmed is None else "good" if is_confirmed else "bad"
