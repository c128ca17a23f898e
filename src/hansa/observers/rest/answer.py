"""Reads the answers of an HTTP API as a `ListRequest` describes them.

An answer that is not as described raises InvalidAnswer: a list that may be incomplete must not be
taken for a complete one.
"""

import hashlib
import json
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hansa.observers.rest.description import ListRequest

ROWS_MAX = 1_000_000
"""Rows of all answers of a poll; with more the observer is not complete."""

_MISSING = object()
_HASH_MARK = "\0"  # no client id contains it
_HASH_CHARS = 8
_HASH_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase


class InvalidAnswer(ValueError):
    """An answer that is not as described; the message says why, without values of the answer."""


@dataclass(frozen=True, slots=True)
class ListedSubscription:
    """One row: a client id, empty if unknown, and its filter in the syntax of MQTT."""

    client: str
    """As the broker gives it; for `client_is_hash` as `hash_client_id` returns it."""
    topic_filter: str


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    subscriptions: tuple[ListedSubscription, ...]
    item_count: int
    """Items of the outermost list."""
    total: int | None
    """Items of all pages, as the broker says; None if it does not."""


def read_page(request: ListRequest, body: bytes) -> Page:
    """Read one answer; raise InvalidAnswer."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer("it is not JSON") from error
    names = request.rows.split(".") if request.rows else []
    items = value
    for name in names[:1]:
        items = value.get(name) if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise InvalidAnswer(f"it has no list {request.rows!r}" if names else "it is not a list")
    total = _read_total(request, value)
    if total is not None and request.paging == "none" and total != len(items):
        raise InvalidAnswer(f"it has {len(items)} items and says that there are {total}")
    pattern = re.compile(request.client_pattern) if request.client_pattern else None
    only = re.compile(request.only_pattern)
    subscriptions = []
    for row in _walk(items, names[1:], ()):
        if request.only and not only.fullmatch(_text(_find(row, request.only))):
            continue
        found = _read_row(request, row, pattern)
        if found is not None:
            subscriptions.append(found)
            if len(subscriptions) > ROWS_MAX:
                raise InvalidAnswer(f"it has more than {ROWS_MAX} rows")
    return Page(tuple(subscriptions), len(items), total)


def _read_total(request: ListRequest, value: object) -> int | None:
    if not request.total:
        return None
    total = _find((value,), request.total)
    if total is _MISSING and request.paging == "page":  # then an empty page is the last
        return None
    if not isinstance(total, int) or isinstance(total, bool) or total < 0:
        raise InvalidAnswer(f"{request.total!r} is not a number")
    return total


Row = tuple[Any, ...]
"""An object, and the objects that contain it, innermost first."""


def _walk(value: object, names: list[str], outer: Row) -> Iterator[Row]:
    """Yield the rows at the end of the names. Inner lists may be missing: some brokers omit empty
    ones."""
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, names, outer)
    elif not isinstance(value, dict):
        raise InvalidAnswer("a row is not an object")
    elif not names:
        yield (value, *outer)
    elif value.get(names[0]) is not None:
        yield from _walk(value[names[0]], names[1:], (value, *outer))


def _find(row: Row, name: str) -> object:
    """Return a field of a row or of the objects around it."""
    for level in row:
        value = level
        for part in name.split("."):
            value = value.get(part, _MISSING) if isinstance(value, Mapping) else _MISSING
        if value is not _MISSING and value is not None:
            return value
    return _MISSING


def _text(value: object) -> str:
    if value is _MISSING:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _read_row(
    request: ListRequest, row: Row, pattern: re.Pattern[str] | None
) -> ListedSubscription | None:
    """Return the subscription of a row; None if the row is none."""
    client = _find(row, request.client) if request.client else _MISSING
    topic_filter = _find(row, request.filter)
    if not isinstance(topic_filter, str):
        raise InvalidAnswer(f"a row has no text {request.filter!r}")
    if client is _MISSING and request.client_optional:
        client = ""
    if not isinstance(client, str):
        raise InvalidAnswer(f"a row has no text {request.client!r}")
    if pattern is not None:
        found = pattern.fullmatch(client)
        if found is None:
            return None
        client = found[1]
    if not topic_filter.startswith(request.filter_prefix):
        return None
    converted = _CONVERTERS[request.syntax](topic_filter.removeprefix(request.filter_prefix))
    group = _find(row, request.share) if request.share else _MISSING
    if group is not _MISSING and group != "":
        if not isinstance(group, str):
            raise InvalidAnswer(f"{request.share!r} of a row is not a text")
        converted = f"$share/{group}/{converted}"
    return ListedSubscription(_HASH_MARK + client if request.client_is_hash else client, converted)


def hash_client_id(client_id: str) -> str:
    """Return a client id as rows with `client_is_hash` have it."""
    digest = hashlib.sha256(client_id.encode()).digest()[:_HASH_CHARS]
    return _HASH_MARK + "".join(_HASH_DIGITS[byte % len(_HASH_DIGITS)] for byte in digest)


def filter_from_nats(subject: str) -> str:
    """Return the MQTT filter of a NATS subject: `.` separates levels, `*` and `>` are the
    wildcards, `//` is a dot within a level, and `/` is an empty level."""
    levels = ("" if token == "/" else token.replace("//", ".") for token in subject.split("."))
    return "/".join({"*": "+", ">": "#"}.get(level, level) for level in levels)


def filter_from_amqp(key: str) -> str:
    """Return the MQTT filter of an AMQP binding key. RabbitMQ does not distinguish a dot within a
    level from the separator."""
    return "/".join("+" if word == "*" else word for word in key.split("."))


def _unchanged(topic_filter: str) -> str:
    return topic_filter


_CONVERTERS = {"mqtt": _unchanged, "nats": filter_from_nats, "amqp": filter_from_amqp}
