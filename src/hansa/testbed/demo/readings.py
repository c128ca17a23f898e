"""Payloads of the demo's sensors, and their mapping to a table.

A reading is a JSON object: {"site": "0", "celsius": 21.4, "n": 17}. `site` is the broker of the
publication, `n` its number in the stream, from 0.
"""

import json
import math
from collections.abc import Callable

PAYLOADS = """\
[temperatures]
filter = "plant/+/temp"
columns = "site string, celsius double, n bigint"
"""
"""File for `--payloads`: every reading becomes a row of the table `temperatures`."""

QUERY = (
    "select topic, site, count(*) readings, round(avg(celsius), 2) mean, min(celsius) min,"
    " max(celsius) max from temperatures group by all order by all"
)

PERIOD = 300
"""Readings per period of the temperature."""


def temperature(site: int) -> Callable[[int], bytes]:
    """Return a function from number to payload for the thermometer of a site."""

    def payload(number: int) -> bytes:
        celsius = 20 + site + 1.5 * math.sin(2 * math.pi * number / PERIOD)
        return _encode({"site": str(site), "celsius": round(celsius, 1), "n": number})

    return payload


def speed(site: int) -> bytes:
    return _encode({"site": str(site), "rpm": 1450, "n": 0})


def _encode(reading: dict[str, object]) -> bytes:
    return json.dumps(reading).encode()


def source_of(payload: bytes) -> tuple[int, int]:
    """Return the site and the number of a reading."""
    reading = json.loads(payload)
    return int(reading["site"]), int(reading["n"])
