"""The readings that the demo's sensors publish, and the table that Spark makes of them.

A reading is a JSON object: {"site": "0", "celsius": 21.4, "n": 17}. `site` is the broker where it
was published, `n` counts the readings of one stream from 0.
"""

import json
import math
from collections.abc import Callable

PAYLOADS = """\
[temperatures]
filter = "plant/+/temp"
columns = "site string, celsius double, n bigint"
"""
"""The mapping for `--payloads`: every reading becomes a row of the table `temperatures`."""

QUERY = (
    "select topic, site, count(*) readings, round(avg(celsius), 2) mean, min(celsius) min,"
    " max(celsius) max from temperatures group by all order by all"
)

PERIOD = 300
"""Readings until a temperature begins to repeat."""


def temperature(site: int) -> Callable[[int], bytes]:
    """Return the payloads of a site's thermometer, by number."""

    def payload(number: int) -> bytes:
        celsius = 20 + site + 1.5 * math.sin(2 * math.pi * number / PERIOD)
        return _encode({"site": str(site), "celsius": round(celsius, 1), "n": number})

    return payload


def speed(site: int) -> bytes:
    """Return the payload of a site's tachometer."""
    return _encode({"site": str(site), "rpm": 1450, "n": 0})


def _encode(reading: dict[str, object]) -> bytes:
    return json.dumps(reading).encode()


def source_of(payload: bytes) -> tuple[int, int]:
    """Return the site and the number of a reading."""
    reading = json.loads(payload)
    return int(reading["site"]), int(reading["n"])
