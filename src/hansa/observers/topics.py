"""Learns subscriptions from the `$SYS` topics on which some brokers announce every change.

| kind | topic | payload |
|---|---|---|
| aedes | `$SYS/<broker>/new/subscribes` | `{"clientId": "c", "subs": [{"topic": "a", "qos": 0}]}` |
| | `$SYS/<broker>/new/unsubscribes` | `{"clientId": "c", "subs": ["a"]}` |
| rmqtt | `$SYS/brokers/<n>/session/<client>/subscribed` | `{"clientid", "topic", "opts", "time"}` |
| | `…/unsubscribed`, `…/terminated` | the same, without `opts` or `topic` |

aedes reports a refused subscription with QoS 128, and the end of a clean session as
unsubscriptions. In RMQTT `terminated` ends all subscriptions of a client.

There is no list and no count of what was subscribed before. So the observer is complete only if the
operator declares that the agent is connected before any client, and until the connection is lost
for the first time. RMQTT sends these messages out of order; their times decide then.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from hansa.errors import InvalidTopic, UsageError
from hansa.observers.base import (
    FilterCounts,
    FilterNotAnnounced,
    LineNotUnderstood,
    Observer,
    ObserverFinding,
    ObserverOutput,
    ObserverSnapshot,
)
from hansa.protocol.topics import check_filter, is_local_only, split_share

KINDS = ("aedes", "rmqtt")
SUBSCRIPTIONS_MAX = 1 << 18
"""Subscriptions of all clients; with more the observer is not complete."""

REFUSED_QOS = 128
NOT_CONNECTED = "the observer has not been connected to the broker yet"
EARLIER = (
    "what was subscribed before the agent came is unknown; if the agent always connects before any"
    " client, set [topics] agent_first = true"
)
INTERRUPTED = "the connection of the observer was interrupted: changes meanwhile are unknown"
_SNAPSHOT_FORMAT = "topics 1"
_SHOWN_CHARS_MAX = 64


@dataclass(slots=True)
class _Session:
    filters: dict[str, None] = field(default_factory=dict)
    changed_at: dict[str, str] = field(default_factory=dict)
    """By filter: time of the last message about it, if the broker sends times."""


@dataclass(frozen=True, slots=True)
class _Message:
    """What a publication says."""

    client: str
    subscribed: tuple[str, ...] = ()
    unsubscribed: tuple[str, ...] = ()
    is_end: bool = False
    time: str = ""


class TopicsObserver(Observer):
    """Subscriptions that a broker announces."""

    def __init__(self, kind: str, own_prefix: str, agent_first: bool) -> None:
        """Clients whose id starts with the prefix are the agent's own. `agent_first`: the agent is
        connected before any client."""
        if not own_prefix:
            raise ValueError("an empty prefix would make every client the agent's own")
        self._kind = kind
        self._own_prefix = own_prefix
        self._agent_first = agent_first
        self._sessions: dict[str, _Session] = {}
        self._filters = FilterCounts()
        self._subscription_count = 0
        self._problem = NOT_CONNECTED
        self._findings: list[ObserverFinding] = []

    @property
    def is_complete(self) -> bool:
        """Whether every subscription is known."""
        return not self._problem

    @property
    def incomplete_reason(self) -> str:
        """Why it is not complete; empty if it is."""
        return self._problem

    def topics_to_subscribe(self) -> tuple[str, ...]:
        """Return the topics of the broker's messages."""
        if self._kind == "aedes":
            return ("$SYS/+/new/subscribes", "$SYS/+/new/unsubscribes")
        return ("$SYS/brokers/+/session/#",)

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the known filters, sorted."""
        return self._filters.subscribed_filters()

    def on_connected(self, session_lost: bool, now: float) -> ObserverOutput:
        """Note a connection; only the first one may be complete."""
        if self._problem == NOT_CONNECTED and self._agent_first:
            self._problem = ""
        elif self._problem == NOT_CONNECTED:
            self._problem = EARLIER
        elif not self._problem:
            self._problem = INTERRUPTED
        return self._make_output()

    def receive_publication(self, topic: str, payload: bytes, now: float) -> ObserverOutput:
        """Process one message of the broker."""
        try:
            message = self._parse(topic, json.loads(payload))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            shown = topic[:_SHOWN_CHARS_MAX]
            self._findings.append(LineNotUnderstood(shown, type(error).__name__))
            self._problem = self._problem or "a message of the broker could not be read"
            return self._make_output()
        if message is not None and not message.client.startswith(self._own_prefix):
            self._apply(message)
        return self._make_output()

    def snapshot(self) -> ObserverSnapshot:
        """Return the filters of each client."""
        sessions = {name: list(session.filters) for name, session in self._sessions.items()}
        return {"format": _SNAPSHOT_FORMAT, "sessions": sessions}

    def restore(self, saved: ObserverSnapshot, now: float) -> ObserverOutput:
        """Restore the filters. Changes since then are unknown."""
        sessions = saved.get("sessions")
        if saved.get("format") != _SNAPSHOT_FORMAT or not isinstance(sessions, dict):
            raise UsageError(f"not a snapshot of the observer {_SNAPSHOT_FORMAT}")
        for client, filters in sessions.items():
            if not isinstance(filters, list):
                raise UsageError(f"snapshot of the observer {_SNAPSHOT_FORMAT}: no list of filters")
            self._apply(_Message(str(client), subscribed=tuple(map(str, filters))))
        self._problem = INTERRUPTED
        return self._make_output()

    def on_snapshot_missing(self) -> None:
        """Note that clients may have subscribed since an earlier incarnation connected."""
        self._problem = INTERRUPTED

    # ------------------------------------------------------------ messages

    def _parse(self, topic: str, value: dict[str, Any]) -> _Message | None:
        """Return what a message says; None if it is about something else."""
        verb = topic.rpartition("/")[2]
        if self._kind == "aedes":
            client, subs = _text(value["clientId"]), value["subs"]
            if not isinstance(subs, list):
                raise TypeError("subs")
            if verb == "unsubscribes":
                return _Message(client, unsubscribed=tuple(map(_text, subs)))
            granted = (each["topic"] for each in subs if each["qos"] < REFUSED_QOS)
            return _Message(client, subscribed=tuple(map(_text, granted)))
        client, time = _text(value["clientid"]), _text(value["time"])
        if verb == "terminated":
            return _Message(client, is_end=True, time=time)
        if verb not in ("subscribed", "unsubscribed"):
            return None
        topic_filter = _text(value["topic"])
        if verb == "subscribed":
            group = value["opts"].get("group")
            shared = f"$share/{_text(group)}/{topic_filter}" if group else topic_filter
            return _Message(client, subscribed=(shared,), time=time)
        held = self._sessions.get(client, _Session()).filters  # the message does not say the group
        ended = tuple(each for each in held if split_share(each)[1] == topic_filter)
        return _Message(client, unsubscribed=ended, time=time)

    def _apply(self, message: _Message) -> None:
        session = self._sessions.setdefault(message.client, _Session())
        for topic_filter in message.subscribed:
            if message.time >= session.changed_at.get(topic_filter, ""):
                self._add(session, topic_filter, message.time)
        ended = tuple(session.filters) if message.is_end else message.unsubscribed
        for topic_filter in ended:
            # At equal times the order is unknown: the filter stays.
            last = session.changed_at.get(topic_filter, "")
            if topic_filter in session.filters and (not message.time or message.time > last):
                self._remove(session, topic_filter)
        if not session.filters:
            del self._sessions[message.client]

    def _add(self, session: _Session, topic_filter: str, time: str) -> None:
        if topic_filter not in session.filters:
            if not self._is_announced(topic_filter):
                return
            if self._subscription_count >= SUBSCRIPTIONS_MAX:
                self._problem = f"there are more than {SUBSCRIPTIONS_MAX} subscriptions"
                return
            self._subscription_count += 1
            session.filters[topic_filter] = None
            self._filters.add(topic_filter)
        if time:
            session.changed_at[topic_filter] = time

    def _remove(self, session: _Session, topic_filter: str) -> None:
        session.changed_at.pop(topic_filter, None)
        del session.filters[topic_filter]
        self._subscription_count -= 1
        self._filters.remove(topic_filter)

    def _is_announced(self, topic_filter: str) -> bool:
        if is_local_only(topic_filter):
            return False
        try:
            check_filter(topic_filter)
        except InvalidTopic as error:
            shown = topic_filter[:_SHOWN_CHARS_MAX]
            self._findings.append(FilterNotAnnounced(shown, str(error)))
            return False
        return True

    def _make_output(self) -> ObserverOutput:
        findings, self._findings = self._findings, []
        return self._filters.drain_output(self, findings)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
