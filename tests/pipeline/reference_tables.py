"""Reference implementation of every gold table in plain Python: slow, and easy to verify.

Each function has the name of its table and maps telemetry rows of one hour to a dictionary from the
key (in the order of the table's docstring, without the hour) to the other columns.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from hansa.protocol.topics import matches

Row = dict[str, Any]
Table = dict[tuple[Any, ...], Row]
UNREACHABLE = 4_294_967_295
SETTLING_KINDS = (
    "core_elected core_lost parents_changed mesh_joined mesh_left node_reachable node_unreachable"
    " interest_added interest_removed subscribed_at_broker unsubscribed_at_broker"
    " interest_installed incarnation_raised epoch_rollover_required link_up link_down link_refused"
).split()


def of(rows: Iterable[Row], *kinds: str) -> list[Row]:
    return [row for row in rows if row["kind"] in kinds]


def publication_key(row: Row) -> tuple[Any, ...]:
    return (row["run"], row["origin_id"], row["epoch"], row["sequence"], row["qos"] > 0)


def timestamp(time_ns: int) -> datetime:
    """Return a time as PySpark does: without time zone, by the clock of this machine."""
    return datetime.fromtimestamp(0) + timedelta(microseconds=time_ns // 1_000)  # noqa: DTZ006


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[tuple(row[column] for column in columns)].append(row)
    return found


def percentile(values: list[float], fraction: float) -> float:
    """Interpolate linearly between the two nearest values."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def deliveries(rows: list[Row]) -> list[Row]:
    """Return the first delivery of each publication at each other node, with the count."""
    published = {publication_key(row): row["time_ns"] for row in of(rows, "captured")}
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in of(rows, "delivered"):
        if row["origin_id"] != row["node_id"]:
            found[*publication_key(row), row["node_id"]].append(row)
    result = []
    for key, same in found.items():
        first = min(row["time_ns"] for row in same)
        known = [row["hops"] for row in same if row["hops"] is not None]
        published_ns = published.get(key[:-1])
        delay = None if published_ns is None else (first - published_ns) / 1e6
        values = {"hops": min(known, default=None), "delay_ms": delay}
        result.append({**same[0], "delivery_count": len(same), **values})
    return result


def _delays(found: list[Row]) -> Row:
    known = [row["delay_ms"] for row in found if row["delay_ms"] is not None]
    fractions = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        "deliveries": len(found),
        "measured": len(known),
        "delay_ms_mean": sum(known) / len(known) if known else None,
        **{
            f"delay_ms_{word}": percentile(known, fraction) if known else None
            for word, fraction in fractions.items()
        },
        "delay_ms_max": max(known, default=None),
    }


def delay(rows: list[Row]) -> Table:
    each = grouped(deliveries(rows), "run", "origin_id", "node_id", "hops")
    return {key: _delays(same) for key, same in each.items()}


def delay_by_hops(rows: list[Row]) -> Table:
    each = grouped(deliveries(rows), "run", "hops")
    return {key: _delays(same) for key, same in each.items()}


def interest_periods(rows: list[Row]) -> list[Row]:
    """Return when which node had interest in which filter."""
    starts = defaultdict(list)
    for (run, node, incarnation), records in grouped(
        of(rows, "node_started"), "run", "node_id", "incarnation"
    ).items():
        starts[run, node].append((min(row["time_ns"] for row in records), incarnation))
    last: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows:
        key = (row["run"], row["node_id"], row["incarnation"])
        last[key] = max(last[key], row["time_ns"])
    result = []
    changes = of(rows, "interest_added", "interest_removed")
    for (run, node, incarnation, group), records in grouped(
        changes, "run", "node_id", "incarnation", "group"
    ).items():
        ordered = sorted(starts[run, node])
        after = [at for (_, before), (at, _) in pairwise(ordered) if before == incarnation]
        records.sort(key=lambda row: row["record_sequence"])
        for row, following in zip(records, [*records[1:], None], strict=True):
            if row["kind"] == "interest_added":
                is_followed = after and after[0] >= row["time_ns"]
                end = last[run, node, incarnation] if is_followed else None
                result.append(
                    {
                        "run": run,
                        "node_id": node,
                        "group": group,
                        "since": row["time_ns"],
                        "until": following["time_ns"] if following else end,
                    }
                )
    return result


def delivery(rows: list[Row]) -> Table:
    expected = set()
    periods = grouped(interest_periods(rows), "run")
    for row in of(rows, "captured"):
        for period in periods.get((row["run"],), []):
            node = period["node_id"]
            is_during = period["since"] <= row["time_ns"] and (
                period["until"] is None or row["time_ns"] < period["until"]
            )
            if is_during and node != row["origin_id"] and matches(period["group"], row["topic"]):
                expected.add((*publication_key(row), node))
    counts = {
        (*publication_key(row), row["node_id"]): row["delivery_count"] for row in deliveries(rows)
    }
    table: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for key in expected | counts.keys():
        count = table[key[0], key[1], key[-1]]
        count["expected"] += key in expected
        count["delivered"] += key in expected and key in counts
        count["lost"] += key in expected and key not in counts
        count["delivered_repeatedly"] += counts.get(key, 0) > 1
        count["delivered_without_interest"] += key not in expected
    return {
        key: {
            **count,
            "delivered_ratio": count["delivered"] / count["expected"]
            if count["expected"]
            else None,
        }
        for key, count in table.items()
    }


def redundancy(rows: list[Row]) -> Table:
    received = grouped(of(rows, "copy_received"), "run", "node_id")
    sizes: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in of(rows, "copy_received"):
        sizes[*publication_key(row), row["peer_id"], row["node_id"]].append(row["frame_bytes"])
    result = {}
    for (run, node), copies in received.items():
        hops = {(*publication_key(row), row["peer_id"], node) for row in copies}
        duplicates = [
            hop
            for row in of(rows, "duplicate")
            if (row["run"], row["node_id"]) == (run, node)
            and (hop := (*publication_key(row), row["peer_id"], node)) in hops
        ]
        result[run, node] = {
            "received": len(copies),
            "duplicates": len(duplicates),
            "duplicate_bytes": sum(sum(sizes[hop]) / max(1, len(sizes[hop])) for hop in duplicates),
            "duplicate_ratio": len(duplicates) / len(copies),
        }
    return result


def link_bytes(rows: list[Row]) -> Table:
    found: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in of(rows, "copy_sent", "control_frame_sent"):
        frame = row["frame"] if row["kind"] == "control_frame_sent" else "publication"
        count = found[row["run"], row["node_id"], row["peer_id"], frame]
        count["frames"] += 1
        count["bytes"] += row["frame_bytes"]
    return {key: dict(count) for key, count in found.items()}


def link_counts(rows: list[Row]) -> dict[str, int]:
    """Return the number of links per run over which control frames were sent."""
    found = defaultdict(set)
    for row in of(rows, "control_frame_sent"):
        if row["peer_id"] is not None:
            found[row["run"]].add(frozenset((row["node_id"], row["peer_id"])))
    return {run: len(ends) for run, ends in found.items()}


def announcements(rows: list[Row]) -> Table:
    links = link_counts(rows)
    sent = [
        row
        for row in of(rows, "control_frame_sent")
        if row["frame"] == "CoreAnnouncement" and row["distance"] < UNREACHABLE
    ]
    ups = grouped(of(rows, "link_up"), "run", "node_id", "incarnation", "peer_id")
    result = {}
    key_columns = ("run", "core_id", "core_incarnation", "announcement_sequence")
    for key, frames in grouped(sent, *key_columns).items():
        first_sent = min(row["time_ns"] for row in frames)
        on_old_links = on_new_links = 0
        for row in frames:
            direction = (row["run"], row["node_id"], row["incarnation"], row["peer_id"])
            before = [
                up
                for up in ups.get(direction, [])
                if up["record_sequence"] < row["record_sequence"]
            ]
            up = max(before, key=lambda up: up["record_sequence"], default=None)
            on_old_links += up is None or up["time_ns"] <= first_sent
            on_new_links += up is not None and up["time_ns"] > first_sent
        result[key] = {
            "frames": on_old_links,
            "frames_on_new_links": on_new_links,
            "bytes": sum(row["frame_bytes"] for row in frames),
            "announced_at": timestamp(first_sent),
            "links": links[key[0]],
            "bound_ratio": on_old_links / (2 * links[key[0]]),
        }
    return result


def control_overhead(rows: list[Row]) -> Table:
    links = link_counts(rows)
    durations = {
        run: (max(row["time_ns"] for row in same) - min(row["time_ns"] for row in same)) / 1e9
        for (run,), same in grouped(of(rows, "control_frame_sent"), "run").items()
    }
    result = {}
    for (run, frame), sent in grouped(of(rows, "control_frame_sent"), "run", "frame").items():
        size = sum(row["frame_bytes"] for row in sent)
        result[run, frame] = {
            "frames": len(sent),
            "bytes": size,
            "links": links.get(run),
            "seconds": durations[run],
            "bytes_per_link_second": size / (durations[run] * links[run])
            if run in links and durations[run]
            else None,
        }
    return result


def convergence(rows: list[Row]) -> Table:
    known = {
        (row["run"], row["time_ns"], row["disturbance"]): row["seconds"]
        for row in of(rows, "converged")
    }
    result = {}
    for (run,), faults in grouped(of(rows, "fault_injected"), "run").items():
        changes = [row["time_ns"] for row in of(rows, *SETTLING_KINDS) if row["run"] == run]
        faults.sort(
            key=lambda row: (
                row["time_ns"],
                row["node_id"],
                row["incarnation"],
                row["record_sequence"],
            )
        )
        for fault, following in zip(faults, [*faults[1:], None], strict=True):
            end = following["time_ns"] if following else float("inf")
            during: list[int] = []
            for changed in sorted(at for at in changes if fault["time_ns"] <= at < end):
                if during and changed - during[-1] > 1_000_000_000:
                    break
                during.append(changed)
            at = fault["time_ns"]
            result[run, fault["node_id"], fault["incarnation"], fault["record_sequence"]] = {
                "recorded_at": timestamp(at),
                "disturbance": fault["disturbance"],
                "target_id": fault["target_id"],
                "peer_id": fault["peer_id"],
                "agreed_after_s": known.get((run, at, fault["disturbance"])),
                "settled_after_s": (max(during) - at) / 1e9 if during else None,
                "changes": len(during),
            }
    return result


def traffic_matrix(rows: list[Row]) -> Table:
    return {
        key: {"publications": len(same), "bytes": sum(row["payload_bytes"] for row in same)}
        for key, same in grouped(deliveries(rows), "run", "origin_id", "node_id").items()
    }


def locality(rows: list[Row]) -> Table:
    sent = [row for row in of(rows, "copy_sent") if row["node_id"] == row["origin_id"]]
    forwarded = {publication_key(row) for row in sent}
    delivered = grouped(deliveries(rows), "run", "origin_id")
    result = {}
    for key, published in grouped(of(rows, "captured"), "run", "origin_id").items():
        found = delivered.get(key, [])
        known = [row["hops"] for row in found if row["hops"] is not None]
        result[key] = {
            "publications": len(published),
            "not_forwarded": sum(publication_key(row) not in forwarded for row in published),
            "deliveries": len(found),
            "hops_mean": sum(known) / len(known) if known else None,
            "neighbour_ratio": known.count(1) / len(found) if found else None,
        }
    return result


def hot_topics(rows: list[Row]) -> Table:
    delivered = Counter((row["run"], row["topic"]) for row in deliveries(rows))
    copies: Counter[tuple[str, str]] = Counter()
    carried: Counter[tuple[str, str]] = Counter()
    for row in of(rows, "copy_sent"):
        copies[row["run"], row["topic"]] += 1
        carried[row["run"], row["topic"]] += row["frame_bytes"]
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
                "deliveries": delivered[key[0], key[1]],
            }
    return result
