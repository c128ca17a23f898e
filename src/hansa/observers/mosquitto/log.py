"""Parser for the lines of Mosquitto's log, versions 1.6 to 2.1. Stateless.

Ids, filters and user names may contain spaces and whatever else a line contains, so a line may have
several readings. The parser returns all of them, or says that the event is not certain. It is an
error to announce less than clients subscribe to, so only certain events remove filters. The known
client ids are an argument: a connection ends, or unsubscribes, only if it is known.

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
| a bridge of the broker connects | `Connecting bridge [(step 1) ]<name> (<address>)` |
"""

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
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
    """Pairs of client id and filter, the longest id first."""


@dataclass(frozen=True, slots=True)
class ClientUnsubscribed:
    """A client unsubscribed from a filter, which it may never have had."""

    readings: tuple[tuple[str, str], ...]
    """Pairs of known client id and filter, the longest id first."""
    is_only_reading: bool = True
    """Whether no other client can be meant, not even one that is not known."""


@dataclass(frozen=True, slots=True)
class ClientConnected:
    client: str
    mode: SessionMode
    is_clean: bool
    """Whether it asked for a clean session."""
    address: str
    is_bridge: bool = False


@dataclass(frozen=True, slots=True)
class ClientPossiblyConnected:
    """One of several clients connected: a user name looks like the end of the line."""

    clients: tuple[str, ...]


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
    is_certain: bool = True


@dataclass(frozen=True, slots=True)
class AmbiguousLine:
    """A line of a file that may be of several kinds: one of these events happened."""

    events: tuple["LogEvent", ...]


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


@dataclass(frozen=True, slots=True)
class BridgeConnecting:
    """The broker itself connects to another one. It never logs the subscriptions of its bridges."""


ConnectionEvent = ClientConnected | ClientDisconnected | ClientTakenOver | SessionExpired
LogEvent = (
    ClientSubscribed
    | ClientUnsubscribed
    | ConnectionEvent
    | ClientPossiblyConnected
    | AmbiguousLine
    | ClientMessagesDropped
    | OversizedPublishDropped
    | BrokerStarted
    | Stopped
    | Reloaded
    | Persisted
    | BridgeConnecting
    | UnparsedLine
)

# ---------------------------------------------------------------- timestamps

DEFAULT_TIMESTAMP = re.compile(r"(?:\d{9,}: )?")
"""Seconds since 1970, or nothing."""


def timestamp_pattern(example: str) -> re.Pattern[str]:
    """Return a pattern for all timestamps of the same format: numbers and names vary. Blanks at the
    end do not: more of them belong to a client id, ` bob` for example."""
    inner = example.rstrip()
    pieces = re.findall(r"\d+|[^\W\d_]+|\s+|.", inner)
    end = re.escape(example[len(inner) :])
    return re.compile("".join(_pattern_of(piece) for piece in pieces) + end)


def _pattern_of(text: str) -> str:
    if text[0].isdigit():
        return r"\d+"
    if text[0].isalpha():
        return r"[^\W\d_]+"
    return r"\s*" if text[0].isspace() else re.escape(text)


# ---------------------------------------------------------------- lines

_CONNECTED = re.compile(r"New (client|bridge) connected from (\S*) as ")
_CONNECTED_HOW = re.compile(r" \(p(\d+), c([01]), k\d+(?:, u'.*')?\)\.")
_EXPIRED = re.compile(r"Expiring client (.*) due to timeout\.")
_STARTED = re.compile(r"mosquitto version (\d+\.\d+\.\S*) starting")
_STOPPED = re.compile(r"mosquitto version \S+ terminating")
_RELOADED = "Reloading config."
_PERSISTED = re.compile(r"Saving in-memory database to .*|Restored \d+ .*")
_BRIDGE_CONNECTING = re.compile(r"Connecting bridge .*\)")
_MESSAGES_DROPPED = re.compile(r"Outgoing messages are being dropped for client (.*)\.")
_PUBLISH_DROPPED = re.compile(r"Dropping too large outgoing PUBLISH for (.*) \((\d+) bytes\)")
_BAD_SOCKET = "Bad socket read/write on client "
_QOS_BEGIN = re.compile("[0-2] ")
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
            return _parse_subscribe(line, is_truncated) or UnparsedLine(
                "no client id and QoS in it"
            )
        case LogChannel.UNSUBSCRIBE:
            return _parse_unsubscribe(line, is_truncated, known)
        case LogChannel.NOTICE:
            return _parse_notice(line, is_truncated, known)
        case LogChannel.HISTORY:
            return _parse_history(line, is_truncated, known)


def _parse_subscribe(line: str, is_truncated: bool) -> ClientSubscribed | None:
    end = CUT_MARK if is_truncated else ""
    gaps = [gap.start() for gap in _QOS.finditer(line)]
    readings = [(line[:gap], line[gap + 3 :] + end) for gap in reversed(gaps)]
    readings = [(client, name) for client, name in readings if client and name]
    return ClientSubscribed(tuple(readings)) if readings else None


def _parse_unsubscribe(
    line: str, is_truncated: bool, known: Container[str]
) -> ClientUnsubscribed | None:
    """Parse with known ids only: others have no subscriptions. But a client without any may be the
    one that is meant."""
    end = CUT_MARK if is_truncated else ""
    splits = [(client, rest + end) for client, rest in _split_id(line, " ") if rest]
    readings = tuple(split for split in splits if split[0] in known)
    return ClientUnsubscribed(readings, len(splits) == 1) if readings else None


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
    if _BRIDGE_CONNECTING.fullmatch(line):
        return BridgeConnecting()
    if found := _MESSAGES_DROPPED.fullmatch(line):
        return ClientMessagesDropped(found[1])
    if found := _PUBLISH_DROPPED.fullmatch(line):
        return OversizedPublishDropped(found[1], int(found[2]))
    return None


def _parse_connect(line: str) -> LogEvent:
    """Parse who connected. A client with a crafted user name could otherwise make it seem that
    another client connected with a clean session and so lost all filters."""
    found = _CONNECTED.match(line)
    readings = []
    if found is not None:
        for client, _ in _split_id(line[found.end() :], " (p"):
            how = _CONNECTED_HOW.fullmatch(line, found.end() + len(client))
            if how is not None:
                readings.append((client, how))
    if found is None or not readings:
        return UnparsedLine("not the form of a connection")
    if len(readings) > 1:
        return ClientPossiblyConnected(tuple(client for client, _ in readings))
    client, how = readings[0]
    is_clean = how[2] == "1"
    return ClientConnected(
        client, _session_mode(int(how[1]), is_clean), is_clean, found[2], found[1] == "bridge"
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

    A known client may choose a filter so that its line looks like one of another kind; then nothing
    ends for certain. Two lines are not distinguished, because every log would be ambiguous: the end
    of a subscription to a filter that begins with a QoS level, and one that looks like the start of
    the broker. If a client uses these, the broker's counts usually contradict the log.
    """
    if found := _STARTED.fullmatch(line):
        return BrokerStarted(found[1])
    if line == _RELOADED:
        return Reloaded()
    if _STOPPED.fullmatch(line):
        return Stopped()
    if _PERSISTED.fullmatch(line):
        return Persisted()
    notice = _parse_notice(line, is_truncated, known)
    granted = _parse_subscribe(line, is_truncated)
    ended = _parse_unsubscribe(line, is_truncated, known)
    if granted is not None and not _is_plausible(granted, known, notice is not None):
        granted = None
    if granted is not None and ended is not None:
        # A filter `1 x` would make every line ambiguous.
        others = tuple(each for each in ended.readings if not _QOS_BEGIN.match(each[1]))
        ended = ClientUnsubscribed(others, is_only_reading=False) if others else None
    by_client: list[LogEvent] = [event for event in (granted, ended) if event is not None]
    if not by_client:
        return notice
    if notice is None and len(by_client) == 1:
        return by_client[0]
    if notice is not None and not isinstance(notice, UnparsedLine):
        by_client.insert(0, _make_uncertain(notice))
    return AmbiguousLine(tuple(by_client))


def _is_plausible(granted: ClientSubscribed, known: Container[str], is_other: bool) -> bool:
    """Whether a line of a file that looks like a grant, and like another line if `is_other`, may be
    one."""
    return any(
        client in known or (not is_other and " " not in client) for client, _ in granted.readings
    )


def _make_uncertain(event: LogEvent) -> LogEvent:
    match event:
        case ClientDisconnected() | SessionExpired():
            return replace(event, is_certain=False)
        case ClientConnected(client):
            return ClientPossiblyConnected((client,))
    return event
