"""Every gold table once more, in plain Python from rows of telemetry: slow, and easy to believe.

A table is a dictionary from keys to the other columns, in the order of the function's docstring.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from hansa.protocol.topics import matches

Row = dict[str, Any]
Table = dict[tuple[Any, ...], Row]
UNREACHABLE = 4_294_967_295
MOVES = (
    "core_elected core_lost parents mesh_joined mesh_left member_joined member_lost wanted unwanted"
    " subscribed unsubscribed installed life_raised epoch_renewed link_up link_down link_refused"
).split()


def of(rows: Iterable[Row], *kinds: str) -> list[Row]:
    return [row for row in rows if row["kind"] in kinds]


def name(row: Row) -> tuple[Any, ...]:
    """Which publication it is about."""
    return (row["run"], row["origin"], row["life"], row["seq"], row["qos"] > 0)


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[tuple(row[column] for column in columns)].append(row)
    return found


def percentile(values: list[float], share: float) -> float:
    """Between the two nearest, by distance."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def deliveries(rows: list[Row]) -> list[Row]:
    """The first delivery of each publication at each other node, with how often it came."""
    published = {name(row): row["time_ns"] for row in of(rows, "captured")}
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in of(rows, "delivered"):
        if row["origin"] != row["node"]:
            found[*name(row), row["node"]].append(row)
    result = []
    for key, times in found.items():
        first = min(row["time_ns"] for row in times)
        known = [row["hops"] for row in times if row["hops"] is not None]
        began = published.get(key[:-1])
        delay = None if began is None else (first - began) / 1e6
        one = {**times[0], "times": len(times), "hops": min(known, default=None), "delay_ms": delay}
        result.append(one)
    return result


def _delays(found: list[Row]) -> Row:
    known = [row["delay_ms"] for row in found if row["delay_ms"] is not None]
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        "deliveries": len(found),
        "measured": len(known),
        "delay_ms_mean": sum(known) / len(known) if known else None,
        **{
            f"delay_ms_{word}": percentile(known, share) if known else None
            for word, share in shares.items()
        },
        "delay_ms_max": max(known, default=None),
    }


def known_hops(rows: list[Row]) -> list[Row]:
    found = deliveries(rows)
    return [{**row, "hops": -1 if row["hops"] is None else row["hops"]} for row in found]


def delay(rows: list[Row]) -> Table:
    found = [
        {**row, "hops": -1 if row["hops"] is None else row["hops"]} for row in deliveries(rows)
    ]
    each = grouped(found, "run", "origin", "node", "hops")
    return {key: _delays(same) for key, same in each.items()}


def delay_by_hops(rows: list[Row]) -> Table:
    found = [
        {**row, "hops": -1 if row["hops"] is None else row["hops"]} for row in deliveries(rows)
    ]
    return {key: _delays(same) for key, same in grouped(found, "run", "hops").items()}


def wanted(rows: list[Row]) -> list[Row]:
    """When which node wanted which filter."""
    starts = defaultdict(list)
    for (run, node, life), told in grouped(
        of(rows, "started"), "run", "node", "incarnation"
    ).items():
        starts[run, node].append((min(row["time_ns"] for row in told), life))
    last: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows:
        life = (row["run"], row["node"], row["incarnation"])
        last[life] = max(last[life], row["time_ns"])
    result = []
    changes = of(rows, "wanted", "unwanted")
    for (run, node, life, group), told in grouped(
        changes, "run", "node", "incarnation", "group"
    ).items():
        ordered = sorted(starts[run, node])
        after = [at for (_, before), (at, _) in pairwise(ordered) if before == life]
        told.sort(key=lambda row: row["number"])
        for row, following in zip(told, [*told[1:], None], strict=True):
            if row["kind"] == "wanted":
                lasting = last[run, node, life] if after and after[0] >= row["time_ns"] else None
                until = following["time_ns"] if following else lasting
                result.append(
                    {
                        "run": run,
                        "node": node,
                        "group": group,
                        "since": row["time_ns"],
                        "until": until,
                    }
                )
    return result


def delivery(rows: list[Row]) -> Table:
    asked = set()
    wishes = grouped(wanted(rows), "run")
    for row in of(rows, "captured"):
        for wish in wishes.get((row["run"],), []):
            there = wish["since"] <= row["time_ns"] and (
                wish["until"] is None or row["time_ns"] < wish["until"]
            )
            if there and wish["node"] != row["origin"] and matches(wish["group"], row["topic"]):
                asked.add((*name(row), wish["node"]))
    came = {(*name(row), row["node"]): row["times"] for row in deliveries(rows)}
    table: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for key in asked | came.keys():
        count = table[key[0], key[1], key[-1]]
        count["wanted"] += key in asked
        count["delivered"] += key in asked and key in came
        count["lost"] += key in asked and key not in came
        count["twice"] += came.get(key, 0) > 1
        count["unasked"] += key not in asked
    return {
        key: {**count, "share": count["delivered"] / count["wanted"] if count["wanted"] else None}
        for key, count in table.items()
    }


def redundancy(rows: list[Row]) -> Table:
    received = grouped(of(rows, "received"), "run", "node")
    sizes: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in of(rows, "sent"):
        sizes[*name(row), row["node"], row["peer"]].append(row["frame_bytes"])
    result = {}
    for (run, node), copies in received.items():
        ways = {(*name(row), row["peer"], node) for row in copies}
        cut = [
            way
            for row in of(rows, "duplicate")
            if (row["run"], row["node"]) == (run, node)
            and (way := (*name(row), row["peer"], node)) in ways
        ]
        paid = sum(sum(sizes[way]) / max(1, len(sizes[way])) for way in cut)
        result[run, node] = {
            "received": len(copies),
            "duplicates": len(cut),
            "duplicate_bytes": paid,
            "share": len(cut) / len(copies),
        }
    return result


def link_bytes(rows: list[Row]) -> Table:
    found: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in of(rows, "sent", "control"):
        frame = row["frame"] if row["kind"] == "control" else "publication"
        count = found[row["run"], row["node"], row["peer"] or "", frame]
        count["frames"] += 1
        count["bytes"] += row["frame_bytes"]
    return {key: dict(count) for key, count in found.items()}


def links(rows: list[Row]) -> dict[str, int]:
    """How many links a run had."""
    found = defaultdict(set)
    for row in of(rows, "link_up", "link_down", "round_trip"):
        if row["peer"] is not None:
            found[row["run"]].add(frozenset((row["node"], row["peer"])))
    return {run: len(ends) for run, ends in found.items()}


def announcements(rows: list[Row]) -> Table:
    lines = links(rows)
    told = [
        row
        for row in of(rows, "control")
        if row["frame"] == "Announce" and row["distance"] < UNREACHABLE
    ]
    ups = grouped(of(rows, "link_up"), "run", "node", "incarnation", "peer")
    result = {}
    for key, frames in grouped(told, "run", "core", "life", "seq").items():
        born = min(row["time_ns"] for row in frames)
        counts = later = 0
        for row in frames:
            way = (row["run"], row["node"], row["incarnation"], row["peer"])
            before = [up for up in ups.get(way, []) if up["number"] < row["number"]]
            up = max(before, key=lambda up: up["number"], default=None)
            counts += up is None or up["time_ns"] <= born
            later += up is not None and up["time_ns"] > born
        result[key] = {
            "frames": counts,
            "later": later,
            "bytes": sum(row["frame_bytes"] for row in frames),
            "time_ns": born,
            "links": lines[key[0]],
            "share": counts / (2 * lines[key[0]]),
        }
    return result


def control_overhead(rows: list[Row]) -> Table:
    lines = links(rows)
    lasted = {
        run: (max(row["time_ns"] for row in told) - min(row["time_ns"] for row in told)) / 1e9
        for (run,), told in grouped(rows, "run").items()
    }
    result = {}
    for (run, frame), told in grouped(of(rows, "control"), "run", "frame").items():
        size = sum(row["frame_bytes"] for row in told)
        result[run, frame] = {
            "frames": len(told),
            "bytes": size,
            "links": lines.get(run),
            "seconds": lasted[run],
            "bytes_per_link_second": size / (lasted[run] * lines[run]) if run in lines else None,
        }
    return result


def convergence(rows: list[Row]) -> Table:
    known = {
        (row["run"], row["time_ns"], row["what"]): row["seconds"] for row in of(rows, "converged")
    }
    result = {}
    for (run,), faults in grouped(of(rows, "fault"), "run").items():
        moves = [row["time_ns"] for row in of(rows, *MOVES) if row["run"] == run]
        faults.sort(
            key=lambda row: (row["time_ns"], row["node"], row["incarnation"], row["number"])
        )
        for fault, following in zip(faults, [*faults[1:], None], strict=True):
            end = following["time_ns"] if following else float("inf")
            during: list[int] = []
            for moved in sorted(at for at in moves if fault["time_ns"] <= at < end):
                if during and moved - during[-1] > 1_000_000_000:
                    break
                during.append(moved)
            at = fault["time_ns"]
            result[run, fault["node"], fault["incarnation"], fault["number"]] = {
                "time_ns": at,
                "what": fault["what"],
                "target": fault["target"],
                "peer": fault["peer"],
                "seconds": known.get((run, at, fault["what"])),
                "settled_s": (max(during) - at) / 1e9 if during else None,
                "changes": len(during),
            }
    return result


def traffic_matrix(rows: list[Row]) -> Table:
    return {
        key: {"publications": len(same), "bytes": sum(row["payload_bytes"] for row in same)}
        for key, same in grouped(deliveries(rows), "run", "origin", "node").items()
    }


def locality(rows: list[Row]) -> Table:
    crossed = {name(row) for row in of(rows, "sent")}
    came = grouped(deliveries(rows), "run", "origin")
    result = {}
    for key, published in grouped(of(rows, "captured"), "run", "origin").items():
        there = came.get(key, [])
        known = [row["hops"] for row in there if row["hops"] is not None]
        result[key] = {
            "publications": len(published),
            "stayed": sum(name(row) not in crossed for row in published),
            "deliveries": len(there),
            "hops_mean": sum(known) / len(known) if known else None,
            "near_share": known.count(1) / len(there) if there else None,
        }
    return result


def hot_topics(rows: list[Row]) -> Table:
    topics = {name(row): row["topic"] for row in of(rows, "captured")}
    came = Counter((row["run"], row["topic"]) for row in deliveries(rows))
    copies: Counter[tuple[str, str]] = Counter()
    carried: Counter[tuple[str, str]] = Counter()
    for row in of(rows, "sent"):
        if name(row) in topics:
            copies[row["run"], topics[name(row)]] += 1
            carried[row["run"], topics[name(row)]] += row["frame_bytes"]
    result: Table = {}
    for (_,), published in grouped(of(rows, "captured"), "run").items():
        each = grouped(published, "run", "topic")
        ordered = sorted(each, key=lambda key: (-len(each[key]), key[1]))
        for rank, key in enumerate(ordered[:100], 1):
            result[key] = {
                "publications": len(each[key]),
                "payload_bytes": sum(row["payload_bytes"] for row in each[key]),
                "rank": rank,
                "copies": copies[key[0], key[1]],
                "link_bytes": carried[key[0], key[1]],
                "deliveries": came[key[0], key[1]],
            }
    return result
