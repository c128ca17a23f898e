"""Reads the subscriptions of persistent sessions from Mosquitto's persistence file, mosquitto.db.

The broker loads the file at its start and logs nothing about it. Later it replaces the file as a
whole: every `autosave_interval`, at its end, and at SIGUSR1. So at any time the file names every
session that was restored and still exists, and maybe some that ended.

Format 6, of Mosquitto 2.0 and 2.1, in network byte order: a magic text, a checksum that is not
used, the format, then chunks of type, length and body. The body of a subscription (type 5):

    identifier 4 · length of client id 2 · length of filter 2 · QoS 1 · options 1 · padding 2
    client id · filter
"""

import json
import re
import struct
from pathlib import Path
from typing import BinaryIO

from hansa.errors import UsageError

MAGIC = b"\x00\xb5\x00mosquitto db"
FORMAT = 6
SUBSCRIPTIONS_MAX = 1 << 20
"""Subscriptions that are read; a file with more is refused."""

RESTORED_MARK = "\0restored "
"""Begin of a line that `insert_restored` adds to a log. The broker writes no such line: MQTT
forbids the character in client ids and topics."""

_STARTED = re.compile(r"mosquitto version \d+\.\d+\.\S* starting\n")
_HEADER = _CHUNK = struct.Struct("!II")
_SUBSCRIPTION = struct.Struct("!IHHBBxx")
_SUBSCRIPTION_CHUNK = 5
_CHUNK_BYTES_MAX = _SUBSCRIPTION.size + 2 * 65_535


def read_subscriptions(file: BinaryIO) -> dict[str, list[str]]:
    """Return the filters of each session; raise UsageError if the file is not as described."""
    if file.read(len(MAGIC)) != MAGIC:
        raise UsageError("it is not the persistence file of a Mosquitto")
    _, version = _unpack(_HEADER, file.read(_HEADER.size))
    if version != FORMAT:
        raise UsageError(f"its format is {version}, known is {FORMAT}")
    found: dict[str, list[str]] = {}
    count = 0
    while head := file.read(_CHUNK.size):
        kind, length = _unpack(_CHUNK, head)
        if kind != _SUBSCRIPTION_CHUNK:
            file.seek(length, 1)
            continue
        if length > _CHUNK_BYTES_MAX or count == SUBSCRIPTIONS_MAX:
            raise UsageError("a subscription is too long, or there are too many")
        client, topic_filter = _subscription(file.read(length))
        found.setdefault(client, []).append(topic_filter)
        count += 1
    return found


def _subscription(body: bytes) -> tuple[str, str]:
    _, id_length, filter_length, _, _ = _unpack(_SUBSCRIPTION, body[: _SUBSCRIPTION.size])
    client_end = _SUBSCRIPTION.size + id_length
    if len(body) != client_end + filter_length:
        raise UsageError("it ends too early")
    try:
        return body[_SUBSCRIPTION.size : client_end].decode(), body[client_end:].decode()
    except UnicodeDecodeError as error:
        raise UsageError("a client id or a filter is not UTF-8") from error


def _unpack(layout: struct.Struct, data: bytes) -> tuple[int, ...]:
    if len(data) != layout.size:
        raise UsageError("it ends too early")
    return layout.unpack(data)


# ---------------------------------------------------------------- in a log


def insert_restored(text: str, path: Path) -> str:
    """Return a log with one more line after the last start of the broker: the sessions in the
    persistence file, or why they are not known."""
    starts = [found.end() for found in _STARTED.finditer(text)]
    if not starts:
        return text
    try:
        with path.open("rb") as file:
            content: object = read_subscriptions(file)
    except (OSError, UsageError) as error:
        content = f"{path}: {error}"
    end = starts[-1]
    return f"{text[:end]}{RESTORED_MARK}{json.dumps(content)}\n{text[end:]}"


def parse_restored(line: str) -> dict[str, list[str]] | str:
    """Return what a line of `insert_restored` says: the sessions, or a problem."""
    found: dict[str, list[str]] | str = json.loads(line.removeprefix(RESTORED_MARK))
    return found
