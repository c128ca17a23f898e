"""An agent's status as Prometheus text: counters with their reasons, links with their bytes."""

from collections.abc import Iterator, Mapping

METRICS_KIND = "text/plain; version=0.0.4"


def as_metrics(status: Mapping[str, object]) -> str:
    """Return the lines that Prometheus reads."""
    return "\n".join([*_lines(status), ""])


def fed_as_metrics(status: Mapping[str, object]) -> str:
    """Return the same of a node of `mqtt-fed`."""
    brokers, topics, filters = status["brokers"], status["topics"], status["left_out"]
    assert isinstance(brokers, dict) and isinstance(topics, dict) and isinstance(filters, list)
    connected = {name: int(not problem) for name, problem in brokers.items()}
    lines = (
        *_one("hansa_broker_connected", "gauge", {}, connected.pop("own")),
        *_many("hansa_neighbour_broker_connected", "gauge", "neighbour", connected),
        *_one("hansa_topics", "gauge", {}, len(topics)),
        *_one("hansa_filters_left_out", "gauge", {}, len(filters)),
        *_many("hansa_events_total", "counter", "event", status["counters"]),
    )
    return "\n".join([*lines, ""])


def _lines(status: Mapping[str, object]) -> Iterator[str]:
    broker, interest = status["broker"], status["interest"]
    assert isinstance(broker, dict) and isinstance(interest, dict)
    yield from _one("hansa_broker_connected", "gauge", {}, int(bool(broker["connected"])))
    yield from _one("hansa_interest_installed", "gauge", {}, int(bool(interest["installed"])))
    members = status["members"]
    assert isinstance(members, list)
    yield from _one("hansa_members", "gauge", {}, len(members))
    yield from _many("hansa_size", "gauge", "of", status["sizes"])
    delivery, alarms = status["delivery"], status["alarms"]
    assert isinstance(delivery, dict) and isinstance(alarms, dict)
    yield from _many("hansa_owed", "gauge", "receiver", delivery["owed"])
    rest = {name: value for name, value in delivery.items() if name != "owed"}
    yield from _many("hansa_delivery", "gauge", "of", rest)
    yield from _many("hansa_alarm", "gauge", "name", dict.fromkeys(alarms, 1))
    yield from _many("hansa_events_total", "counter", "event", status["counters"])
    neighbours = status["neighbours"]
    assert isinstance(neighbours, dict)
    for field in ("bytes_in", "bytes_out", "dropped"):
        rates = {node: seen[field] for node, seen in neighbours.items()}
        yield from _many(f"hansa_link_{field}_total", "counter", "neighbour", rates)
    waiting = {node: seen["outstanding_bytes"] for node, seen in neighbours.items()}
    yield from _many("hansa_link_outstanding_bytes", "gauge", "neighbour", waiting)
    trips = {n: s["rtt_ms"] / 1000 for n, s in neighbours.items() if s["rtt_ms"] is not None}
    yield from _many("hansa_link_rtt_seconds", "gauge", "neighbour", trips)


def _one(name: str, kind: str, labels: Mapping[str, str], value: float) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield _line(name, labels, value)


def _many(name: str, kind: str, label: str, values: object) -> Iterator[str]:
    assert isinstance(values, dict)
    yield f"# TYPE {name} {kind}"
    for key, value in sorted(values.items()):
        yield _line(name, {label: str(key)}, value)


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    text = ",".join(f'{key}="{_escape(word)}"' for key, word in labels.items())
    return f"{name}{{{text}}} {value}" if text else f"{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
