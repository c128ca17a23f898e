"""The cards of the report, one per question: a heading, a short answer, a plot and its numbers."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from html import escape
from typing import Any

from hansa.pipeline.gold import HOT_TOPICS_MAX
from hansa.pipeline.report import plots, topology
from hansa.pipeline.report.durations import NOT_OVER, duration, interruption
from hansa.pipeline.report.facts import INCIDENT_RECORDS, OVER_TIME, Rows, RunFacts
from hansa.pipeline.report.incidents import DEFINITIONS, Incident, count_active, find_incidents
from hansa.pipeline.report.plots import format_bytes, format_number
from hansa.pipeline.report.sweeps import MEASURES, SweepSummary

TABLE_ROWS_MAX = 60

CLIENT_CARD_TITLE = "What did the clients receive?"
CLIENT_COUNT_COLUMNS = ("published", "arrived", "lost", "duplicates")


def card(heading: str, answer: str, plot: str, table: str = "") -> str:
    more = f"<details><summary>numbers</summary>{table}</details>" if table else ""
    return (
        f'<section class="card"><h3>{escape(heading)}</h3><p>{escape(answer)}</p>{plot}{more}'
        "</section>"
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of at most TABLE_ROWS_MAX rows, with the number of rows left out."""
    listed = list(rows)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in listed[:TABLE_ROWS_MAX]
    )
    rest = len(listed) - TABLE_ROWS_MAX
    more = f"<p>and {rest:,} more: <code>hansa pipeline query</code></p>" if rest > 0 else ""
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"</div>{more}"
    )


def tiles(facts: RunFacts) -> str:
    """Return the key figures of a run."""
    expected, delivered = (facts.total("delivery", name) for name in ("expected", "delivered"))
    repeated = facts.total("delivery", "delivered_repeatedly")
    received, duplicates = (facts.total("redundancy", name) for name in ("received", "duplicates"))
    shown = [
        ("nodes", format_number(len(facts.tables["nodes"]))),
        ("links", format_number(len(facts.tables["links"]))),
        ("publications", format_number(facts.total("locality", "publications"))),
        *_client_tiles(facts),
        (
            "delivered of subscribed, as agents recorded",
            f"{format_number(delivered)} of {format_number(expected)}",
        ),
        ("delivered more than once, as agents recorded", format_number(repeated)),
        (
            "copies dropped as duplicates",
            f"{100 * duplicates / received:.0f} %" if received else "–",
        ),
        ("control bytes per link and second", format_number(_per_link_second(facts))),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for name, value in shown
        )
        + "</div>"
    )


def _client_tiles(facts: RunFacts) -> list[tuple[str, str]]:
    if not facts.tables["client_deliveries"]:
        return []
    arrived, published = _client_totals(facts)
    return [
        (
            "arrived at clients of other brokers",
            f"{format_number(arrived)} of {format_number(published)}",
        )
    ]


def _client_totals(facts: RunFacts) -> tuple[float, float]:
    return facts.total("client_deliveries", "arrived"), facts.total(
        "client_deliveries", "published"
    )


def _per_link_second(facts: RunFacts) -> float:
    return facts.total("control_overhead", "bytes_per_link_second")


def run_cards(facts: RunFacts) -> list[str]:
    """Return the cards of one run, without those that have no data."""
    cards = (
        _over_time(facts),
        _incidents(facts),
        _client_deliveries(facts),
        _delay_by_hops(facts),
        _delay_by_pair(facts),
        _delivery(facts),
        _redundancy(facts),
        _links(facts),
        _announcements(facts),
        _convergence(facts),
        _traffic(facts),
        _topics(facts),
        _overhead(facts),
    )
    return [each for each in cards if each]


def _over_time(facts: RunFacts) -> str:
    rows = facts.tables.get(OVER_TIME, [])
    if len(rows) < 2:
        return ""
    step = rows[0]["step_s"]
    unit, size = ("hours", 3_600) if rows[-1]["at_s"] > 7_200 else ("seconds", 1)

    def points(name: str, divisor: float = 1) -> list[tuple[float, float]]:
        return [(row["at_s"] / size, row[name] / divisor) for row in rows if row[name] is not None]

    rates = {name: points(name, step) for name in ("publications", "deliveries")}
    delays = {"median": points("p50_ms"), "99 %": points("p99_ms")}
    drawn = plots.lines("publications and deliveries per second", rates, unit)
    if any(delays.values()):
        drawn += plots.lines("delay, ms", delays, unit)
    answer = (
        f"Publications and deliveries per second, and the delay in ms, by {unit} since the start;"
        f" each point is {format_number(step)} s."
    )
    losses = {"copies dropped": points("dropped"), "publications lost": points("lost")}
    if any(count for line in losses.values() for _, count in line):
        drawn += plots.lines("dropped and lost", losses, unit)
        answer += (
            " Dropped are copies that a node did not forward, often one of several; lost are"
            " publications that a node will never receive (records `dropped` and `gap`)."
        )
    incidents = find_incidents(facts.tables.get(INCIDENT_RECORDS, []))
    started_at = min(row["started_at"] for row in facts.tables["runs"])
    seconds = range(0, round(rows[-1]["at_s"]) + step + 1, step)
    starts = [started_at + timedelta(seconds=at) for at in seconds]
    active = count_active(incidents, starts, timedelta(seconds=step))
    if any(active):
        line = [(at / size, float(count)) for at, count in zip(seconds, active, strict=True)]
        drawn += plots.lines("active alarms", {"active alarms": line}, unit)
        answer += " Active alarms were raised and not cleared before that point."
    return card("What happened over time?", answer, drawn)


def _incidents(facts: RunFacts) -> str:
    found = find_incidents(facts.tables.get(INCIDENT_RECORDS, []))
    if not found:
        return ""
    started_at = min(row["started_at"] for row in facts.tables["runs"])
    counts = Counter(incident.kind for incident in found)
    answer = " ".join(
        f"{format_number(counts[kind])} × {kind}: {meaning}."
        for kind, meaning in DEFINITIONS.items()
        if kind in counts
    )
    rows = [
        (
            (incident.at - started_at).total_seconds(),
            _incident_text(facts, incident),
            incident,
        )
        for incident in found
    ]
    drawn = plots.timeline(
        "Incidents", [(at, text, incident.seconds) for at, text, incident in rows], "not over"
    )
    numbers = table(
        ("after", "incident", "took", "publications"),
        (
            (
                f"{at:.1f} s",
                text,
                "not over" if incident.seconds is None else duration(incident.seconds),
                format_number(incident.count) if incident.kind == "publications lost" else "",
            )
            for at, text, incident in rows
        ),
    )
    return card("What went wrong?", f"{answer} Clean stops do not count.", drawn, numbers)


def _incident_text(facts: RunFacts, incident: Incident) -> str:
    nodes = " – ".join(facts.name(node) for node in incident.node_ids)
    if incident.alarm:
        return f"alarm {incident.alarm}: {nodes}"
    return f"{incident.kind}: {nodes}"


def _client_deliveries(facts: RunFacts) -> str:
    rows = sorted(
        facts.tables["client_deliveries"],
        key=lambda row: (row["recorded_at"], row["incarnation"], row["record_sequence"]),
    )
    if not rows:
        return ""
    started_at = min(row["started_at"] for row in facts.tables["runs"])
    faults = {row["disturbance"] for row in facts.tables["convergence"]}

    def pair(row: dict[str, Any]) -> str:
        return f"{facts.name(row['origin_id'])} → {facts.name(row['target_id'])}"

    drawn = [
        (
            (row["recorded_at"] - started_at).total_seconds(),
            f"{row['disturbance']}: {pair(row)}",
            row["interruption_s"],
        )
        for row in rows
        if row["disturbance"] in faults and row["interruption_s"] != 0
    ]
    arrived, published = _client_totals(facts)
    answer = (
        f"Counted by MQTT clients, not by agents: {format_number(arrived)} of"
        f" {format_number(published)} publications at other brokers arrived, with"
        f" {format_number(facts.total('client_deliveries', 'duplicates'))} duplicates. An"
        " interruption lasts from the event until the first publication after the last lost one"
        " arrives."
    )
    numbers = table(
        ("event", "path", "published", "arrived", "lost", "duplicates", "interruption"),
        (
            (
                row["disturbance"],
                pair(row),
                *(format_number(row[name]) for name in CLIENT_COUNT_COLUMNS),
                interruption(row["interruption_s"]) if row["disturbance"] in faults else "",
            )
            for row in _sum_faultless_rows(rows, faults)
        ),
    )
    timeline = plots.timeline("Interruptions", drawn, NOT_OVER) if drawn else ""
    return card(CLIENT_CARD_TITLE, answer, f'{timeline}<div class="tight">{numbers}</div>')


def _sum_faultless_rows(rows: Rows, faults: set[str]) -> Rows:
    """Add up the rows of a pair that do not start with a fault."""
    summed: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        time = "" if row["disturbance"] not in faults else str(row["recorded_at"])
        key = (time, row["disturbance"], row["origin_id"], row["target_id"])
        first = summed.setdefault(key, {**row, **dict.fromkeys(CLIENT_COUNT_COLUMNS, 0)})
        for name in CLIENT_COUNT_COLUMNS:
            first[name] += row[name]
    return list(summed.values())


def _delay_by_hops(facts: RunFacts) -> str:
    rows = sorted(
        (row for row in facts.tables["delay_by_hops"] if row["measured"]),
        key=lambda row: -1 if row["hops"] is None else row["hops"],
    )
    if not rows:
        return ""

    def label(hops: int | None) -> str:
        if hops is None:
            return "from a journal"
        return "1 hop" if hops == 1 else f"{hops} hops"

    columns = ("delay_ms_p50", "delay_ms_p95", "delay_ms_p99")
    drawn = [(label(row["hops"]), *(row[column] for column in columns)) for row in rows]
    answer = "Dot: median; tick: 95th percentile; end of the line: 99th percentile."
    numbers = table(
        ("hops", "deliveries", "median ms", "95 %", "99 %", "longest"),
        (
            (
                label(row["hops"]),
                format_number(row["deliveries"]),
                *(format_number(row[column]) for column in (*columns, "delay_ms_max")),
            )
            for row in rows
        ),
    )
    plot = plots.ranges("Delay by number of hops", drawn, "ms")
    return card("How long does a publication take?", answer, plot, numbers)


def _by_pair(facts: RunFacts, rows: str, column: str) -> dict[tuple[str, str], float]:
    return {
        (facts.name(row["origin_id"]), facts.name(row["node_id"])): row[column]
        for row in facts.tables[rows]
        if row[column] is not None
    }


def _names(facts: RunFacts) -> list[str]:
    return sorted(facts.names.values(), key=lambda name: (len(name), name))


def _delay_by_pair(facts: RunFacts) -> str:
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in facts.tables["delay"]:
        if row["measured"]:
            both = sums[facts.name(row["origin_id"]), facts.name(row["node_id"])]
            both[0] += row["delay_ms_mean"] * row["measured"]
            both[1] += row["measured"]
    means = {pair: total / count for pair, (total, count) in sums.items()}
    if not means:
        return ""
    (one, other), worst = max(means.items(), key=lambda item: item[1])
    answer = f"Mean delay; the longest is {format_number(worst, 'ms')}, from {one} to {other}."
    plot = plots.heat("Mean delay by pair", _names(facts), means, "ms", ("from", "to"))
    return card("Between which nodes does it take long?", answer, plot)


def _delivery(facts: RunFacts) -> str:
    by_node: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in facts.tables["delivery"]:
        both = by_node[facts.name(row["node_id"])]
        both[0] += row["delivered"]
        both[1] += row["lost"]
    if not by_node:
        return ""
    rows = sorted(by_node.items(), key=lambda item: (-item[1][1], -item[1][0], item[0]))
    lost = sum(both[1] for both in by_node.values())
    expected = lost + sum(both[0] for both in by_node.values())
    answer = (
        f"The agents recorded a delivery of all {format_number(expected)} publications to which a"
        " node was subscribed when they were published."
        if not lost
        else f"The agents recorded no delivery of {format_number(lost)} (orange) of"
        f" {format_number(expected)} publications to which a node was subscribed when they were"
        " published. Faults may lose publications of QoS 0, and an agent that is killed loses its"
        " last second of records."
    )
    if facts.tables["client_deliveries"]:
        answer += (
            " A node counts as subscribed only while its agent runs and knows of the subscription;"
            f" the card “{CLIENT_CARD_TITLE}” has what its clients missed meanwhile."
        )
    numbers = table(
        ("from", "to", "expected", "delivered", "lost", "repeatedly"),
        (
            (
                facts.name(row["origin_id"]),
                facts.name(row["node_id"]),
                *(
                    format_number(row[column])
                    for column in ("expected", "delivered", "lost", "delivered_repeatedly")
                ),
            )
            for row in sorted(facts.tables["delivery"], key=lambda row: -row["lost"])
        ),
    )
    plot = plots.bars("Delivered and lost by receiver", rows, "publications")
    return card("Does everything arrive?", answer, plot, numbers)


def _redundancy(facts: RunFacts) -> str:
    rows = sorted(
        (
            (facts.name(row["node_id"]), (row["received"] - row["duplicates"], row["duplicates"]))
            for row in facts.tables["redundancy"]
        ),
        key=lambda row: -sum(row[1]),
    )
    if not rows:
        return ""
    received, duplicates = (facts.total("redundancy", name) for name in ("received", "duplicates"))
    size = format_bytes(facts.total("redundancy", "duplicate_bytes"))
    answer = (
        f"{100 * duplicates / received:.0f} % of the copies were duplicates (orange), {size}:"
        " the cost of having another path when one fails."
    )
    plot = plots.bars("Copies received by node", rows, "copies")
    return card("What does redundancy cost?", answer, plot)


def _links(facts: RunFacts) -> str:
    amounts: dict[tuple[str, str], float] = defaultdict(float)
    for row in facts.tables["links"]:
        amounts[_pair(facts, row["node_a_id"], row["node_b_id"])] += 0
    for row in facts.tables["link_bytes"]:
        if row["receiver_id"]:
            amounts[_pair(facts, row["sender_id"], row["receiver_id"])] += row["bytes"]
    if not amounts:
        return ""
    (one, other), most = max(amounts.items(), key=lambda item: item[1])
    answer = (
        "Thickness is bytes, data and control; the busiest link,"
        f" {one} – {other}, had {format_bytes(most)}."
    )
    numbers = table(
        ("link", "bytes"),
        (
            (f"{a} – {b}", format_bytes(amount))
            for (a, b), amount in sorted(amounts.items(), key=lambda item: -item[1])
        ),
    )
    return card(
        "Which links are busy?",
        answer,
        topology.draw_topology("Links", _names(facts), amounts),
        numbers,
    )


def _pair(facts: RunFacts, one: str, other: str) -> tuple[str, str]:
    a, b = sorted((facts.name(one), facts.name(other)))
    return a, b


def _announcements(facts: RunFacts) -> str:
    rows = sorted(facts.tables["announcements"], key=lambda row: row["announced_at"])
    values = [
        (
            f"core {facts.name(row['core_id'])}, number {row['announcement_sequence']},"
            f" {row['frames']} frames",
            row["bound_ratio"],
        )
        for row in rows
        if row["bound_ratio"] is not None
    ]
    if not values:
        return ""
    worst = max(value for _, value in values)
    answer = (
        "Each column is one announcement of a core, relative to the papers' bound of two frames"
        f" per link; the maximum was {100 * worst:.0f} %."
    )
    return card(
        "What does it cost to announce a core?",
        answer,
        plots.columns("Frames per announcement", values, 1.0, "2·l frames"),
    )


def _convergence(facts: RunFacts) -> str:
    rows = sorted(
        facts.tables["convergence"], key=lambda row: (row["recorded_at"], row["record_sequence"])
    )
    if not rows:
        return ""
    started_at = min(row["started_at"] for row in facts.tables["runs"])
    events = [
        (
            (row["recorded_at"] - started_at).total_seconds(),
            row["disturbance"],
            row["agreed_after_s"] if row["agreed_after_s"] is not None else row["settled_after_s"],
        )
        for row in rows
    ]
    known = [took for _, _, took in events if took is not None]
    answer = (
        f"{_agreement(rows)}; the longest was {duration(max(known))}."
        if known
        else "No node recorded a change after any of these events."
    )
    return card(
        "How long do nodes take to agree again?", answer, plots.timeline("Disturbances", events)
    )


def _agreement(rows: Rows) -> str:
    if any(row["agreed_after_s"] is not None for row in rows):
        return "Time from each event until all nodes agreed again"
    return (
        "Time from each event to the last change of membership, interest, cores or links that the"
        " agents recorded before one second without any. Deliveries do not wait for that"
    )


def _traffic(facts: RunFacts) -> str:
    counts = _by_pair(facts, "traffic_matrix", "publications")
    if not counts:
        return ""
    answer = (
        "Deliveries that agents recorded, from row to column;"
        f" {format_number(sum(counts.values()))} in all."
    )
    plot = plots.heat("Traffic matrix", _names(facts), counts, "publications", ("from", "to"))
    return card("Which nodes exchange publications?", answer, plot)


def _topics(facts: RunFacts) -> str:
    rows = sorted(facts.tables["hot_topics"], key=lambda row: (-row["publications"], row["topic"]))[
        :HOT_TOPICS_MAX
    ]
    if not rows:
        return ""
    drawn = [(row["topic"], [row["publications"]]) for row in rows[:12]]
    numbers = table(
        ("topic", "publications", "deliveries", "copies on links", "bytes on links"),
        (
            (
                row["topic"],
                *(
                    format_number(row[column])
                    for column in ("publications", "deliveries", "copies")
                ),
                format_bytes(row["link_bytes"]),
            )
            for row in rows
        ),
    )
    answer = (
        f"The busiest is {rows[0]['topic']}, with {format_number(rows[0]['publications'])}"
        " publications."
    )
    return card(
        "Which topics are hot?", answer, plots.bars("Hot topics", drawn, "publications"), numbers
    )


def _overhead(facts: RunFacts) -> str:
    rows = sorted(
        facts.tables["control_overhead"], key=lambda row: -(row["bytes_per_link_second"] or 0)
    )
    drawn = [(row["frame"], [row["bytes_per_link_second"] or 0]) for row in rows]
    if not drawn:
        return ""
    data = sum(row["bytes"] for row in facts.tables["link_bytes"] if row["frame"] == "publication")
    control = facts.total("control_overhead", "bytes")
    answer = f"Control took {format_bytes(control)} in all, publications {format_bytes(data)}."
    numbers = table(
        ("frame", "frames", "bytes"),
        ((row["frame"], format_number(row["frames"]), format_bytes(row["bytes"])) for row in rows),
    )
    return card(
        "What does control traffic cost?",
        answer,
        plots.bars("Control bytes per link and second", drawn, "bytes per link and second"),
        numbers,
    )


def sweep_cards(sweep: SweepSummary) -> list[str]:
    """Return a card per measure: lines if federation sizes differ, else a bar per combination."""
    cards = []
    for measure, (question, unit, _) in MEASURES.items():
        found = sweep.series[measure]
        if not any(value for points in found.values() for _, value in points):
            continue
        sizes = {nodes for points in found.values() for nodes, _ in points}
        numbers = table(
            ("combination", "nodes", unit),
            (
                (label, format_number(nodes), format_number(value))
                for label, points in found.items()
                for nodes, value in points
            ),
        )
        if len(sizes) > 1:
            answer = f"{unit[0].upper()}{unit[1:]}, by the number of nodes."
            plot = plots.lines(unit, found, "nodes")
        else:
            answer = (
                f"{unit[0].upper()}{unit[1:]}, in federations of {format_number(min(sizes))} nodes."
            )
            plot = plots.bars(
                unit, [(label, [points[0][1]]) for label, points in found.items()], unit
            )
        cards.append(card(question, answer, plot, numbers))
    return cards
