"""Parser for the lines of Mosquitto's log, versions 1.6 to 2.1. Stateless.

The known client ids are an argument, because ids and filters may contain spaces: an ambiguous line
is parsed with the known ids first.

| event | line, after the timestamp |
|---|---|
| a subscription was granted | `<id> <qos> <filter>` |
| an UNSUBSCRIBE arrived, whatever its effect | `<id> <filter>` |
| a client connected | `New client connected from <address> as <id> (p2, c1, k60[, u'<user>']).` |
| a connection ended, until 2.1.0 | `Client <id> disconnected[…].`, `closed its connection.`, … |
| a connection ended, since 2.1.1 | `Client <id> [<address>] disconnected[: <reason>].` |
| a session was taken over, 2.0 | `Client <id> already connected, closing old connection.` |
| a session expired | `Expiring client <id> due to timeout.` |
| the broker starts, stops | `mosquitto version 2.0.11 starting`, `… terminating` |
| SIGHUP | `Reloading config.`, the last line under the former settings |
| the broker saved, or restored, its sessions | `Saving in-memory …`, `Restored …` |
"""

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

LINE_BYTES_MAX = 999
"""Bytes of a line, timestamp included: Mosquitto truncates longer ones without a mark."""

CUT_MARK = "\0"
"""Ends a filter of which only the beginning is known; no real filter contains it."""


class LogChannel(Enum):
    """The source of a line, which decides how to parse it."""

    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    NOTICE = "notice"
    """Notices and errors: which of the two a line is differs between versions."""
    HISTORY = "history"
    """A file that holds all of these, and others."""


class SessionMode(Enum):
    """What happens to a session when its connection ends."""

    CLEAN = "clean"
    """It ends: MQTT 3 with clean session."""
    PERSISTENT = "lasting"
    """It stays until the log says that it expired: MQTT 3 without clean session."""
    EXPIRING = "timed"
    """MQTT 5: it stays for the session expiry interval, which no line shows."""
    UNKNOWN = "unknown"


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class ClientSubscribed:
    """A subscription was granted. Several readings: the line is ambiguous."""

    readings: tuple[tuple[str, str], ...]
    """Pairs of client id and filter."""


@dataclass(frozen=True, slots=True)
class ClientUnsubscribed:
    """A client unsubscribed from a filter, which it may never have had."""

    readings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ClientConnected:
    client: str
    mode: SessionMode
    is_clean: bool
    """Whether it asked for a clean session."""
    address: str
    is_bridge: bool = False


@dataclass(frozen=True, slots=True)
class ClientDisconnected:
    """A connection ended."""

    client: str
    address: str | None = None
    """Its address; None before 2.1.1, which does not log it."""
    is_certain: bool = True
    """Whether it was certainly this client's connection, not one that was refused."""


@dataclass(frozen=True, slots=True)
class ClientTakenOver:
    """2.0 only: a connected client connects again; the next line shows the new connection."""

    client: str


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """A session ended for good."""

    client: str


@dataclass(frozen=True, slots=True)
class ClientMessagesDropped:
    """A client reads too slowly, and the broker drops messages for it."""

    client: str


@dataclass(frozen=True, slots=True)
class OversizedPublishDropped:
    """A publication was larger than a client accepts."""

    client: str
    size: int
    """Bytes of the whole packet."""


@dataclass(frozen=True, slots=True)
class BrokerStarted:
    """The broker started: sessions that were not persisted are gone."""

    version: str


@dataclass(frozen=True, slots=True)
class UnparsedLine:
    """A relevant line that cannot be parsed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The broker stopped in order, and saved its persistent sessions if it persists any."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The broker reloaded its configuration (SIGHUP): its log settings may have changed."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """The broker saved or restored its state: it has `persistence true`."""


ConnectionEvent = ClientConnected | ClientDisconnected | ClientTakenOver | SessionExpired
LogEvent = (
    ClientSubscribed
    | ClientUnsubscribed
    | ConnectionEvent
    | ClientMessagesDropped
    | OversizedPublishDropped
    | BrokerStarted
    | Stopped
    | Reloaded
    | Persisted
    | UnparsedLine
)

# ---------------------------------------------------------------- timestamps

DEFAULT_TIMESTAMP = re.compile(r"(?:\d{9,}: )?")
"""Seconds since 1970, or nothing."""


def timestamp_pattern(example: str) -> re.Pattern[str]:
    """Return a pattern for all timestamps of the same format: numbers and names vary."""
    pieces = re.findall(r"\d+|[^\W\d_]+|\s+|.", example)
    return re.compile("".join(_pattern_of(piece) for piece in pieces))


def _pattern_of(text: str) -> str:
    if text[0].isdigit():
        return r"\d+"
    if text[0].isalpha():
        return r"[^\W\d_]+"
    return r"\s*" if text[0].isspace() else re.escape(text)


# ---------------------------------------------------------------- lines

_CONNECTED = re.compile(
    r"New (client|bridge) connected from (\S*) as (.*) \(p(\d+), c([01]), k\d+(?:, u'.*')?\)\."
)
_EXPIRED = re.compile(r"Expiring client (.*) due to timeout\.")
_STARTED = re.compile(r"mosquitto version (\d+\.\d+\.\S*) starting")
_STOPPED = re.compile(r"mosquitto version \S+ terminating")
_RELOADED = "Reloading config."
_PERSISTED = re.compile(r"Saving in-memory database to .*|Restored \d+ .*")
_MESSAGES_DROPPED = re.compile(r"Outgoing messages are being dropped for client (.*)\.")
_PUBLISH_DROPPED = re.compile(r"Dropping too large outgoing PUBLISH for (.*) \((\d+) bytes\)")
_BAD_SOCKET = "Bad socket read/write on client "
_QOS = re.compile(r"(?= [0-2] )")  # zero width: the gaps in `a 0 1 b` share a space

_TAKEN_OVER = "already connected, closing old connection."
_ENDED = re.compile(
    r"disconnected(?:\.|: .*|, .*| due to .*)"
    r"|closed its connection\."
    r"|has exceeded timeout, disconnecting\."
    r"|been disconnected by administrative action\."
)
_ENDED_AT = re.compile(r"\[(\S*)\] disconnected(?:\.|: .*)")

# A refused client never had a session; 2.1.0 logs it as if it had been connected.
_CONNECT_REFUSED = re.compile(
    r"disconnected, (?:not authorised|implementation specific error|client identifier not valid"
    r"|bad username or password|server unavailable|server busy|client banned"
    r"|bad authentication method|connection rate exceeded|non-matching http origin)\."
)
_UNKNOWN_CLIENT = "<unknown>"
"""The id in lines about connections that ended before CONNECT."""


def may_be_truncated(payload_bytes: int) -> bool:
    """Whether a line of this size was, or may have been, truncated."""
    return payload_bytes >= LINE_BYTES_MAX


def parse_line(
    channel: LogChannel, line: str, is_truncated: bool, known: Container[str]
) -> LogEvent | None:
    """Return the event of a line without its timestamp; None if it is irrelevant."""
    match channel:
        case LogChannel.SUBSCRIBE:
            return _parse_subscribe(line, is_truncated, known) or UnparsedLine(
                "no client id and QoS in it"
            )
        case LogChannel.UNSUBSCRIBE:
            return _parse_unsubscribe(line, is_truncated, known)
        case LogChannel.NOTICE:
            return _parse_notice(line, is_truncated, known)
        case LogChannel.HISTORY:
            return _parse_history(line, is_truncated, known)


def _parse_subscribe(
    line: str, is_truncated: bool, known: Container[str]
) -> ClientSubscribed | None:
    """Parse with all known ids that fit, the longest first; with none, in every possible way."""
    end = CUT_MARK if is_truncated else ""
    gaps = [gap.start() for gap in _QOS.finditer(line)]
    readings = [(line[:gap], line[gap + 3 :] + end) for gap in reversed(gaps)]
    readings = [(client, name) for client, name in readings if client and name]
    fitting = [reading for reading in readings if reading[0] in known]
    return ClientSubscribed(tuple(fitting or readings)) if readings else None


def _parse_unsubscribe(
    line: str, is_truncated: bool, known: Container[str]
) -> ClientUnsubscribed | None:
    """Parse with known ids only: others have no subscriptions."""
    end = CUT_MARK if is_truncated else ""
    readings = tuple(
        (client, rest + end) for client, rest in _split_id(line, " ") if rest and client in known
    )
    return ClientUnsubscribed(readings) if readings else None


def _split_id(text: str, gap: str) -> Iterator[tuple[str, str]]:
    """Yield every split of a text into an id, the gap and a rest; the longest id first."""
    at = text.rfind(gap)
    while at > 0:
        yield text[:at], text[at + len(gap) :]
        at = text.rfind(gap, 0, at)


def _parse_notice(line: str, is_truncated: bool, known: Container[str]) -> LogEvent | None:
    if line.startswith("Client "):
        return None if is_truncated else _parse_client(line.removeprefix("Client "), known)
    if line.startswith(("New client connected ", "New bridge connected ")):
        return UnparsedLine("the line is cut") if is_truncated else _parse_connect(line)
    if found := _EXPIRED.fullmatch(line):
        return SessionExpired(found[1])
    if line.startswith(_BAD_SOCKET):
        for client, _ in _split_id(line.removeprefix(_BAD_SOCKET), ": "):
            if client in known:
                return ClientDisconnected(
                    client, is_certain=False
                )  # or a refused client, until 2.1.0
    if found := _MESSAGES_DROPPED.fullmatch(line):
        return ClientMessagesDropped(found[1])
    if found := _PUBLISH_DROPPED.fullmatch(line):
        return OversizedPublishDropped(found[1], int(found[2]))
    return None


def _parse_connect(line: str) -> LogEvent:
    """Parse who connected. Of two readings the longer id is right, or harmless.

    A user name may look like the end of the line. With the shorter id, a client with a crafted id
    could make it seem that another client connected with a clean session and so lost all filters.
    """
    found = _CONNECTED.fullmatch(line)
    if found is None:
        return UnparsedLine("not the form of a connection")
    kind, address, client, protocol, clean = found.groups()
    is_clean = clean == "1"
    return ClientConnected(
        client, _session_mode(int(protocol), is_clean), is_clean, address, kind == "bridge"
    )


def _session_mode(protocol: int, is_clean: bool) -> SessionMode:
    """Return the session mode. 2.0 numbers the protocols 1, 2, 5; 2.1 uses 3, 4, 5."""
    if protocol > 4:
        return SessionMode.EXPIRING
    return SessionMode.CLEAN if is_clean else SessionMode.PERSISTENT


def _parse_client(text: str, known: Container[str]) -> LogEvent | None:
    """Parse the end of a client's connection or session.

    Where a longer, unknown id is possible, the line may be about another client: even a refused one
    may have used the id `bob disconnected:`.
    """
    unknown_forms = []
    for client, rest in _split_id(text, " "):
        form = _disconnect_form(rest)
        if client not in known:
            unknown_forms.append(form)
        elif rest == _TAKEN_OVER:
            return ClientTakenOver(client)
        elif _CONNECT_REFUSED.fullmatch(rest):
            return None
        elif form is _ENDED_AT:
            return ClientDisconnected(client, rest[1 : rest.index("]")], form not in unknown_forms)
        elif form is _ENDED:
            return ClientDisconnected(
                client, None, form not in unknown_forms and not _is_placeholder(client)
            )
    return None


def _disconnect_form(rest: str) -> re.Pattern[str] | None:
    return next((form for form in (_ENDED_AT, _ENDED) if form.fullmatch(rest)), None)


def _is_placeholder(client: str) -> bool:
    """Whether an id equals the placeholder for connections without an id."""
    if client == _UNKNOWN_CLIENT:
        return True
    try:
        ip_address(client)
    except ValueError:
        return False
    return True


def _parse_history(line: str, is_truncated: bool, known: Container[str]) -> LogEvent | None:
    """Parse a line of a file, which does not show its channel.

    A client may choose id and filter so that they look like another kind of line. But a client that
    may choose its id may also take over another session, so that is no additional risk.
    """
    if found := _STARTED.fullmatch(line):
        return BrokerStarted(found[1])
    if line == _RELOADED:
        return Reloaded()
    if _STOPPED.fullmatch(line):
        return Stopped()
    if _PERSISTED.fullmatch(line):
        return Persisted()
    event = _parse_notice(line, is_truncated, known)
    if event is not None:
        return event
    granted = _parse_subscribe(line, is_truncated, known)
    if granted is not None and _is_plausible_client(granted.readings[-1][0], known):
        return granted
    return _parse_unsubscribe(line, is_truncated, known)


def _is_plausible_client(client: str, known: Container[str]) -> bool:
    return client in known or " " not in client
