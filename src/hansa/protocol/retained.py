"""Which value every topic holds: brokers that want a topic come to hold the same retained value.

A retained publication carries a *version*, from a clock that follows both time and whatever
versions it has seen, so that the later of two is greater; of equal ones the greater node decides.
A node knows the versions that its broker holds, of topics that others want here or that its own
clients want: it lets the broker keep only what is newer. A deletion is a value like any other, and
is remembered for the lease, so that what was deleted stays deleted.

The *owner* of a value is the node whose client published it. It tells whoever wants the topic, and
comes into reach or newly wants it, a digest of what it owns (`Holdings`); where that differs, the
other asks which versions there are (`Ask`, `Listing`), and for what it lacks (`Ask`, `Values`).

What a broker really holds is read by the shell (`Survey`): when others begin to want a filter here,
for what was stored before; when a client and another node wrote one topic at the same moment, for
which of them the broker took last; and before a value is cleared that nobody here wants any more.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from msgspec.structs import replace

from hansa.errors import InvalidFrame
from hansa.protocol.effects import Effect, Ignored, Memorise, ReadStored, Store, Survey
from hansa.protocol.events import StoredRead, Surveyed
from hansa.protocol.frames import Ask, Holdings, Letter, Listing, Values
from hansa.protocol.numbering import Captured
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.telling import SLICE, Teller
from hansa.protocol.topics import FilterTrie, split_share
from hansa.protocol.values import Value, buckets_of, digest
from hansa.protocol.vocabulary import NodeId, Publication
from hansa.protocol.wire import decode_publication, encode

OLDEST = 1
"""The version of what was stored before anybody asked: older than any live publication."""

ASKED_MAX = 100
"""Topics that are asked for at a time."""

RECENT = 10
"""After so many times the settling time a value has reached the broker, whatever disks do."""

TICKS = 1 << 16
"""Versions in a millisecond."""

Outcome = list[Effect | Letter]


class Retained:
    """The newest values of all topics that concern one node."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        wants: Callable[[str], bool],
        receivers: Callable[[str], tuple[NodeId, ...]],
        known: Mapping[str, Value],
    ) -> None:
        """Start with what the disk remembers; `wants` says whether a client here wants a topic,
        `receivers` which other nodes do."""
        self._node = node
        self._settings = settings
        self._wants = wants
        self._receivers = receivers
        self.values = dict(known)
        self._version = max((value.version for value in known.values()), default=0)
        self._origin: float | None = None  # of time
        self._now = 0.0
        self._changed: dict[str, tuple[float, int]] = {}
        """Of those that changed a moment ago, when, and at which QoS."""
        self._doubtful: dict[str, float] = {}  # when to look at what the broker holds
        self._raced: dict[str, bool] = {}
        """Those of them that were written twice at once; whether by a client here, too."""
        self._teller = Teller(node, self.values, receivers)
        self._unsure: dict[str, float] = {}  # when to tell all whose copies may have been lost
        self._save_at: float | None = None
        self._due = math.inf
        """Not after the first time in the two tables above; maybe before it."""

    # ------------------------------------------------------------ versions

    def tell_time(self, incarnation: int, now: float) -> None:
        """It is `now`; an incarnation is a time in milliseconds."""
        if self._origin is None:
            self._origin = incarnation / 1000 - now
        self._now = now

    def _next_version(self) -> int:
        origin = self._origin or 0.0
        self._version = max(self._version + 1, int((origin + self._now) * 1000) * TICKS)
        return self._version

    def _is_newer(self, topic: str, value: Value) -> bool:
        known = self.values.get(topic)
        return known is None or (value.version, value.owner) > (known.version, known.owner)

    def _set(self, topic: str, value: Value, qos: int = 0) -> bool:
        """Note a value; say whether there was room."""
        self._version = max(self._version, value.version)
        if topic not in self.values and len(self.values) >= self._settings.retained_max:
            return False
        self.values[topic] = value
        self._changed[topic] = (self._now, qos)
        self._plan_save()
        return True

    def _drop(self, topic: str) -> None:
        del self.values[topic]
        self._plan_save()

    def _plan_save(self) -> None:
        if self._save_at is None:
            self._save_at = self._now + self._settings.retained_settle

    def _is_settled(self, topic: str, times: int = 1) -> bool:
        changed = self._changed.get(topic)
        return changed is None or self._now >= changed[0] + times * self._settings.retained_settle

    # ------------------------------------------------------------ live publications

    def stamp(self, event: Captured) -> int:
        """A client here published a retained message: return its version."""
        known = self.values.get(event.topic)
        if known is not None and not self._is_settled(event.topic, RECENT):
            _, qos = self._changed[event.topic]
            if known.owner != self._node or (qos > 0) != (event.qos > 0):
                self._raced[event.topic] = True
                self._doubt(event.topic)
        version = self._next_version()
        self._set(event.topic, Value(version, self._node, digest(event.payload)), event.qos)
        if not event.qos and event.topic not in self._unsure:
            self._list_at(event.topic, self._now + self._settings.retained_settle)
        return version

    def judge(self, publication: Publication) -> Publication:
        """Somebody else's arrives, to be delivered here: it is kept only if it is the newest."""
        if not publication.retain:
            return publication
        value = Value(publication.version, publication.origin, digest(publication.payload))
        if self.values.get(publication.topic) == value:
            return publication  # of a former life, that did not get to deliver it
        if not self._is_newer(publication.topic, value):
            return replace(publication, retain=False)
        self._replace(publication.topic, value, publication.qos)
        return publication

    def _replace(self, topic: str, value: Value, qos: int) -> None:
        """Another node's value is delivered; of another quality, it may overtake the one before."""
        if not self._is_settled(topic, RECENT) and self._changed[topic][1] != qos:
            self._raced.setdefault(topic, False)
            self._doubt(topic)
        self._set(topic, value, qos)

    def _doubt(self, topic: str) -> None:
        at = self._doubtful[topic] = self._now + self._settings.retained_settle
        self._due = min(self._due, at)

    def _list_at(self, topic: str, at: float) -> None:
        self._unsure[topic] = at
        self._due = min(self._due, at)

    # ------------------------------------------------------------ what is wanted, and by whom

    def granted(self, filters: Iterable[str]) -> list[Effect]:
        """Others want these filters from now on: see what the broker holds."""
        found = tuple(filters)
        return [Survey(found)] if found else []

    def offer(self, node: NodeId) -> None:
        """A node came into reach, or its interest into force: tell it what there is."""
        if any(value.owner == self._node for value in self.values.values()):
            self._teller.offer(node)

    def unwanted(self, filters: list[str]) -> None:
        """Others want less of this node: what it no longer sees, it does not know."""
        for topic in self._known_of(filters):
            if self.values[topic].owner == self._node and not self._receivers(topic):
                self._drop(topic)

    def left(self, filters: list[str]) -> None:
        """Clients here want less: what was only kept for them has to go."""
        for topic in self._known_of(filters):
            if self.values[topic].owner != self._node and not self._wants(topic):
                self._doubt(topic)

    def _known_of(self, filters: Iterable[str]) -> list[str]:
        """Return the topics that some of these filters match."""
        trie: FilterTrie[None] = FilterTrie()
        for name in filters:
            trie.put(split_share(name)[1], None)
        return [topic for topic in self.values if trie.match(topic)] if len(trie) else []

    # ------------------------------------------------------------ what the broker holds

    def surveyed(self, event: Surveyed) -> Outcome:
        """The shell has read what the broker holds for some filters."""
        stored = dict(event.values)
        effects: Outcome = []
        for topic in dict.fromkeys((*self._known_of(event.filters), *stored)):
            if not self._is_settled(topic):
                self._doubt(topic)
                continue
            before = self.values.get(topic)
            effects += self._compare(topic, stored.get(topic, b""))
            if topic in self.values and self.values[topic] != before:
                self._list_at(topic, self._now)
        return effects

    def _compare(self, topic: str, found: bytes) -> Outcome:
        """Make what is known of a topic what the broker holds."""
        value, by_client = self.values.get(topic), self._raced.pop(topic, None)
        if value is None:
            has_room = self._set(topic, Value(OLDEST, self._node, found))
            return [] if has_room else [Ignored("retained_max")]
        if value.digest == found:
            is_left = value.owner != self._node and not self._wants(topic)
            return [*self._clear(topic)] if is_left else []
        if by_client is False and value.owner != self._node:  # an older one came after it
            self._drop(topic)
            return [Ask(value.owner, self._node, (), ((topic, 0),))]
        if found or by_client:  # a client wrote it unseen, or before another node's came
            self._set(topic, Value(self._next_version(), self._node, found))
        else:  # the broker has lost it: that is no deletion
            self._drop(topic)
        return []

    def _clear(self, topic: str) -> list[Effect]:
        value = self.values[topic]
        self._drop(topic)
        if not value.digest:
            return []
        return [Store(Publication(value.owner, 0, 0, 0, topic, b"", retain=True))]

    # ------------------------------------------------------------ letters

    def receive(self, letter: Holdings | Ask | Listing | Values) -> Outcome:
        """A letter arrived."""
        match letter:
            case Holdings(_, node, digests):
                ours = buckets_of(self._owned_by(node))
                differing = [n for n, d in enumerate(digests) if d != ours[n]]
                return [Ask(node, self._node, tuple(differing))] if differing else []
            case Ask(_, node, buckets, topics):
                return [*self._list(node, buckets), *self._answer(node, topics)]
            case Listing(_, node, entries):
                return [*self._ask(node, entries)]
            case _:
                return self._take(letter)

    def _owned_by(self, node: NodeId) -> dict[str, Value]:
        return {t: value for t, value in self.values.items() if value.owner == node}

    def _list(self, node: NodeId, wanted: tuple[int, ...]) -> list[Letter]:
        if not wanted:
            return []
        self._teller.ask(node, wanted)
        return self._teller.proceed()

    def _list_unsure(self) -> list[Letter]:
        """Tell who wants them the versions of values whose copies may have been lost; so many at a
        time."""
        entries: dict[NodeId, list[tuple[str, int]]] = {}
        due = (topic for topic, at in self._unsure.items() if at <= self._now)
        for topic in list(islice(due, SLICE)):
            del self._unsure[topic]
            value = self.values.get(topic)
            if value is not None and value.owner == self._node:
                for node in self._receivers(topic):
                    entries.setdefault(node, []).append((topic, value.version))
        return [
            each for node, some in entries.items() for each in self._teller.listings(node, some)
        ]

    def _ask(self, owner: NodeId, entries: Iterable[tuple[str, int]]) -> list[Letter]:
        """Ask an owner for what is newer than what is known here, or another value of its own."""
        lacking = [
            (topic, known.version if known else 0)
            for topic, version in entries
            if self._wants(topic)
            and (
                (known := self.values.get(topic)) is None
                or (version, owner) > (known.version, known.owner)
                or (known.owner == owner and known.version != version)
            )
        ]
        return [
            Ask(owner, self._node, (), tuple(lacking[at : at + ASKED_MAX]))
            for at in range(0, len(lacking), ASKED_MAX)
        ]

    def _answer(self, node: NodeId, topics: Iterable[tuple[str, int]]) -> Outcome:
        """Send values of this node: deletions at once, the others when they were read."""
        deleted: list[Publication] = []
        wanted: list[str] = []
        for topic, known in topics:
            value = self.values.get(topic)
            if value is None or value.owner != self._node:
                continue
            if known > value.version:  # a former life knew better
                self._version = max(self._version, known)
                value = replace(value, version=self._next_version())
                self._set(topic, value)
            if value.digest:
                wanted.append(topic)
            else:
                deleted.append(self._publication(topic, b"", 0, b"", value.version))
        outcome: Outcome = [*self._send(node, deleted)]
        return [*outcome, ReadStored(node, tuple(wanted))] if wanted else outcome

    def read(self, event: StoredRead) -> list[Letter]:
        """The shell has read what a node asked for; what has changed meanwhile is on its way."""
        publications = [
            self._publication(v.topic, v.payload, v.qos, v.properties, known.version)
            for v in event.values
            if (known := self.values.get(v.topic)) is not None
            and (known.owner, known.digest) == (self._node, digest(v.payload))
        ]
        return self._send(event.to, publications)

    def _publication(
        self, topic: str, payload: bytes, qos: int, properties: bytes, version: int
    ) -> Publication:
        return Publication(
            self._node, 0, 0, qos, topic, payload, True, properties=properties, version=version
        )

    def _send(self, node: NodeId, publications: list[Publication]) -> list[Letter]:
        """Return letters, each with as many as are asked for in a repair, but at least one."""
        letters: list[Letter] = []
        batch: list[bytes] = []
        room = self._settings.repair_bytes
        for data in map(encode, publications):
            if batch and len(data) > room:
                letters.append(Values(node, self._node, tuple(batch)))
                batch, room = [], self._settings.repair_bytes
            batch.append(data)
            room -= len(data)
        return [*letters, Values(node, self._node, tuple(batch))] if batch else letters

    def _take(self, letter: Values) -> Outcome:
        outcome: Outcome = []
        for data in letter.publications:
            try:
                publication = decode_publication(data)
            except InvalidFrame:
                return [*outcome, Ignored("value that cannot be read")]
            value = Value(publication.version, letter.node, digest(publication.payload))
            if not self._wants(publication.topic) or not self._is_newer(publication.topic, value):
                continue
            known = self.values.get(publication.topic)
            self._replace(publication.topic, value, publication.qos)
            if value.digest or (known is not None and known.digest):
                outcome.append(Store(publication))
        return outcome

    # ------------------------------------------------------------ time

    def fire(self) -> Outcome:
        """Do what is due."""
        now = self._now
        outcome: Outcome = []
        if self._due <= now:
            due = tuple(topic for topic, at in self._doubtful.items() if at <= now)
            for topic in due:
                del self._doubtful[topic]
            outcome += [Survey(due)] if due else []
            outcome += self._list_unsure()
            self._due = min((*self._doubtful.values(), *self._unsure.values()), default=math.inf)
        if self._teller.is_busy:
            outcome += self._teller.proceed()
        if self._save_at is not None and self._save_at <= now:
            self._save_at = None
            self._tidy()
            outcome.append(Memorise())
        return outcome

    def _tidy(self) -> None:
        """Forget deletions that are older than the lease, and when settled values changed."""
        lease_ms = self._settings.interest_lease * 1000
        origin = (self._origin or 0.0) + self._now
        oldest = int((origin * 1000 - lease_ms) * TICKS)
        for topic, value in list(self.values.items()):
            if not value.digest and value.version < oldest:
                del self.values[topic]
        recent = [topic for topic in self._changed if not self._is_settled(topic, RECENT)]
        self._changed = {topic: self._changed[topic] for topic in recent}

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        if self._teller.is_busy:
            return self._now
        due = self._due if self._save_at is None else min(self._due, self._save_at)
        return None if due == math.inf else due
