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
Besides, the node checks whether its broker stores what the node believes (`retained_checks`): all
topics whose handshakes were disturbed or whose QoS changed, a sample of those written lately, and
all values of other nodes whenever the shell has connected to the broker.
"""

import math
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from hansa.errors import InvalidFrame
from hansa.protocol.clock import WallClock
from hansa.protocol.deadlines import Timetable
from hansa.protocol.effects import Effect, Ignored, Memorise, ReadStored, Store, Survey
from hansa.protocol.events import StoredRead, Surveyed
from hansa.protocol.forwarding.numbering import Captured
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.retained.checks import RECENT, Checks, FullComparison
from hansa.protocol.retained.clock import Versions
from hansa.protocol.retained.digest import Value, buckets_of, digest
from hansa.protocol.retained.sync import SLICE, Teller, listings, parcels
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import FilterTrie, split_share
from hansa.protocol.wire.codec import decode_publication
from hansa.protocol.wire.frames import Ask, Holdings, Letter, Listing, Values

OLDEST = 1
"""The version of what was stored before anybody asked: older than any live publication."""

ASKED_MAX = 100
"""Topics that are asked for at a time."""

REPAIRS_MAX = 3
"""How often a broker is given a value again that it does not store, until the next new one."""

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
        clock: WallClock,
    ) -> None:
        """Start with what the disk remembers; `wants` says whether a client here wants a topic,
        `receivers` which other nodes do."""
        self._node = node
        self._settings = settings
        self._wants = wants
        self._receivers = receivers
        self.values = dict(known)
        greatest = max((value.version for value in known.values()), default=0)
        self._versions = Versions(greatest, clock)
        self._is_new = True  # nothing was handled yet
        self._checks = Checks(settings.retained_settle)
        self._doubtful: Timetable[str] = Timetable()  # when to look at what the broker holds
        self._full = FullComparison(settings.retained_settle)
        self._raced = {topic: False for topic, value in known.items() if value.owner != node}
        """Topics of which the broker may store another value than the newest that was delivered,
        because writes were lost or reordered; whether one of the writes was of a client here. What
        an earlier run has written is among them until it was compared once."""
        self._repairs: dict[str, tuple[int, int]] = {}
        """Versions that the broker did not store, and how often it was given each again."""
        self._teller = Teller(node, self.values, receivers)
        self._unsure: Timetable[str] = Timetable()  # when to tell all that copies may be lost
        self._refused = 0
        self._look_back_at = math.inf
        self._save_at = math.inf

    # ------------------------------------------------------------ versions

    def begin(self, now: float) -> None:
        """An input is handled; at the first one, plan to look at what a former life left."""
        self._versions.clock.tell(now)
        if self._is_new:
            self._is_new = False
            if self.values:
                self._look_back_at = now + RECENT * self._settings.retained_settle

    @property
    def _now(self) -> float:
        return self._versions.clock.now

    def _is_newer(self, topic: str, value: Value) -> bool:
        known = self.values.get(topic)
        return known is None or (value.version, value.owner) > (known.version, known.owner)

    def _set(self, topic: str, value: Value, qos: int = 0, size: int = 0) -> bool:
        """Note a value; say whether there was room."""
        self._versions.see(value.version)
        before = self.values.get(topic)
        if before is None and len(self.values) >= self._settings.retained_max:
            return False
        self.values[topic] = value
        self._checks.note(topic, self._now, qos, size, before.digest if before else None)
        self._plan_save()
        return True

    def _drop(self, topic: str) -> None:
        del self.values[topic]
        self._raced.pop(topic, None)
        self._plan_save()

    def _plan_save(self) -> None:
        self._save_at = min(self._save_at, self._now + self._settings.retained_settle)

    def _is_settled(self, topic: str, times: float = 1) -> bool:
        return self._checks.is_settled(topic, self._now, times)

    # ------------------------------------------------------------ live publications

    def stamp(self, event: Captured) -> int:
        """A client here published a retained message: return its version."""
        known = self.values.get(event.topic)
        if known is not None and not self._is_settled(event.topic, RECENT):
            if known.owner != self._node or self._checks.qos(event.topic) != event.qos:
                self._raced[event.topic] = True
                self._doubt(event.topic)
        version = self._versions.next()
        value = Value(version, self._node, digest(event.payload))
        self._set(event.topic, value, event.qos, len(event.payload))
        if not event.qos and event.topic not in self._unsure:
            self._unsure.put(event.topic, self._now + self._settings.retained_settle)
        return version

    def judge(self, publication: Publication) -> Publication:
        """Somebody else's arrives, to be delivered here: it is kept only if it is the newest."""
        if not publication.retain:
            return publication
        value = Value(publication.version, publication.origin, digest(publication.payload))
        if self.values.get(publication.topic) == value:
            return publication  # of a former life, that did not get to deliver it
        is_sound = self._versions.is_sound(value.version)
        self._refused += not is_sound
        is_wanted = is_sound and self._wants(publication.topic)  # not only by a share
        if not is_wanted or not self._is_newer(publication.topic, value):
            return replace(publication, retain=False)
        self._replace(publication, value)
        return publication

    def _replace(self, publication: Publication, value: Value) -> None:
        """Another node's value is delivered. If its QoS is not that of the one before, a shell that
        does not keep the order of such writes may store them in another one."""
        topic, qos = publication.topic, publication.qos
        known = self.values.get(topic)
        if known is not None and known.owner not in (self._node, value.owner):
            self._teller.correct(known.owner, value.owner, topic, value.version)
        if not self._is_settled(topic, RECENT) and self._checks.qos(topic) != qos:
            self._raced.setdefault(topic, False)
            self._doubt(topic)
        self._set(topic, value, qos, len(publication.payload))

    def _doubt(self, topic: str) -> None:
        self._doubtful.put(topic, self._now + self._settings.retained_settle)

    # ------------------------------------------------------------ what is wanted, and by whom

    def granted(self, filters: Iterable[str]) -> list[Effect]:
        """Others want these filters from now on: see what the broker holds."""
        found = tuple(filters)
        return [Survey(found)] if found else []

    def offer(self, node: NodeId) -> None:
        """A node came into reach, or its interest into force: tell it what there is."""
        if any(value.owner == self._node for value in self.values.values()):
            self._teller.offer(node, self._now)

    def unwanted(self, filters: list[str]) -> None:
        """Others want less of this node, which sees no more of it. What it knew counts when they
        come back, or old values would return; where that is too much, it is forgotten."""
        is_much = len(self.values) > self._settings.retained_max // 2
        for topic in self._known_of(filters) if is_much else ():
            if self.values[topic].owner == self._node and not self._receivers(topic):
                self._drop(topic)

    def left(self, filters: list[str]) -> None:
        """Clients here want less: what was only kept for them has to go."""
        self._doubt_left(self._known_of(filters))

    def _doubt_left(self, topics: Iterable[str]) -> None:
        for topic in filter(self._is_left, topics):
            self._doubt(topic)

    def _is_left(self, topic: str) -> bool:
        """Whether a value is another node's, and nobody here wants it."""
        return self.values[topic].owner != self._node and not self._wants(topic)

    def _known_of(self, filters: Iterable[str]) -> list[str]:
        """Return the topics that some of these filters match."""
        trie: FilterTrie[None] = FilterTrie()
        found: dict[str, None] = {}
        for name in filters:
            plain = split_share(name)[1]
            if "+" in plain or "#" in plain:
                trie.put(plain, None)
            elif plain in self.values:
                found[plain] = None
        if len(trie):
            found.update(dict.fromkeys(topic for topic in self.values if trie.match(topic)))
        return list(found)

    # ------------------------------------------------------------ what the broker holds

    def distrust(self, topics: Iterable[str]) -> None:
        """The shell does not know whether the broker stores the newest values of these topics."""
        for topic in topics:
            if topic in self.values:
                self._raced.setdefault(topic, False)
                self._doubt(topic)

    def reconnected(self) -> None:
        """The shell has connected to the broker: writes may be lost, and the broker may have gone
        back to an older state. Check what was written a moment ago, and then, step by step, all
        values of other nodes. The broker decides about values of its own clients."""
        self.distrust(self._checks.recent(self._now))
        others = [topic for topic, value in self.values.items() if value.owner != self._node]
        for topic in others:
            self._raced.setdefault(topic, False)
        self._full.begin(others, self._now)

    def surveyed(self, event: Surveyed) -> Outcome:
        """The shell has read what the broker holds for some filters."""
        times = 1 + event.age / self._settings.retained_settle
        if times > RECENT:  # what has changed since is forgotten
            return [Survey(event.filters)]
        stored = dict(event.values)
        effects: Outcome = []
        for topic in dict.fromkeys((*self._known_of(event.filters), *stored)):
            if not self._is_settled(topic, times):
                self._doubt(topic)
                continue
            before = self.values.get(topic)
            effects += self._compare(topic, stored.get(topic, b""))
            if topic in self.values and self.values[topic] != before:
                self._unsure.put(topic, self._now)
        return self._together(effects)

    def _together(self, outcome: Outcome) -> Outcome:
        """Put questions for single topics together: their owner answers each by one reading."""
        asked: dict[NodeId, list[tuple[str, int]]] = {}
        others: Outcome = []
        for each in outcome:
            if isinstance(each, Ask):
                asked.setdefault(each.to, []).extend(each.topics)
            else:
                others.append(each)
        return [*others, *(ask for to, topics in asked.items() for ask in self._asks(to, topics))]

    def _compare(self, topic: str, found: bytes) -> Outcome:
        """Make what is known of a topic what the broker holds."""
        value, by_client = self.values.get(topic), self._raced.pop(topic, None)
        if value is None:
            has_room = self._set(topic, Value(OLDEST, self._node, found))
            return [] if has_room else [Ignored("retained_max")]
        if value.digest == found and (value.version or self._is_left(topic)):
            self._repairs.pop(topic, None)
            return [*self._clear(topic)] if self._is_left(topic) else []
        is_own = value.owner == self._node
        if by_client:  # before another node's came
            self._set(topic, Value(self._versions.next(), self._node, found))
        elif found and (is_own or not (by_client is False or self._is_stale(topic, found))):
            # Written unseen: after what was known, and before all that others have published since.
            self._set(topic, Value(value.version + 1, self._node, found))
        elif is_own or not self._wants(topic):  # the broker has lost it: that is no deletion
            self._drop(topic)
        elif by_client is None and not found and value.digest:
            # Nothing disturbed the write, so the broker stored it: a client here has deleted it, or
            # it has expired. To store it again would undo what the client did.
            return [Ignored("retained value that is missing at the broker")]
        else:
            return self._repair(topic, value, found)
        return []

    def _is_stale(self, topic: str, found: bytes) -> bool:
        """Whether the broker holds a replaced value, not one that a client wrote unseen."""
        return self._checks.is_former(topic, found, self._now) or not self.values[topic].version

    def _repair(self, topic: str, value: Value, found: bytes) -> Outcome:
        """The broker does not hold another node's value, but an older one or none: set it right,
        a few times at most: it may have expired, or the broker may refuse it."""
        version, count = self._repairs.get(topic, (value.version, 0))
        count = count + 1 if version == value.version else 1
        if count > REPAIRS_MAX:
            return [Ignored("retained value that the broker does not store")]
        if len(self._repairs) >= self._settings.retained_max:
            self._repairs.clear()
        self._repairs[topic] = (value.version, count)
        if value.version and not value.digest:
            self._set(topic, value, qos=1)
            gone = Publication(value.owner, 0, 0, 1, topic, b"", True, version=value.version)
            return [Store(gone)]
        if found:  # until the owner answers, this is what is here, and older than anything
            self._set(topic, Value(0, value.owner, found))
        else:
            self._drop(topic)
        return [Ask(value.owner, self._node, (), ((topic, 0),))]

    def _clear(self, topic: str) -> list[Effect]:
        value = self.values[topic]
        self._drop(topic)
        if not value.digest:
            return []
        gone = Publication(value.owner, 0, 0, 0, topic, b"", retain=True, version=value.version)
        return [Store(gone)]

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
        return self._teller.proceed(self._now)

    def _list_unsure(self) -> list[Letter]:
        """Tell who wants them the versions of values whose copies may have been lost; so many at a
        time."""
        entries: dict[NodeId, list[tuple[str, int]]] = {}
        for topic in self._unsure.take(self._now, SLICE):
            value = self.values.get(topic)
            if value is not None and value.owner == self._node:
                for node in self._receivers(topic):
                    self._teller.offer_later(node, self._now)
                    entries.setdefault(node, []).append((topic, value.version))
        return [each for node, some in entries.items() for each in listings(node, self._node, some)]

    def _ask(self, owner: NodeId, entries: Iterable[tuple[str, int]]) -> list[Letter]:
        """Ask an owner for what is newer than what is known here, or another value of its own;
        tell it of what is older: its broker holds it still."""
        lacking: list[tuple[str, int]] = []
        for topic, version in entries:
            known = self.values.get(topic)
            if known is None:
                is_lacking = self._wants(topic)
            elif known.owner == owner:
                is_lacking = known.version != version and self._wants(topic)
            elif (version, owner) > (known.version, known.owner):
                is_lacking = known.owner == self._node or self._wants(topic)
            else:
                is_lacking = False
                self._teller.correct(owner, known.owner, topic, known.version)
            if is_lacking and self._versions.is_sound(version):
                lacking.append((topic, known.version if known else 0))
        return self._asks(owner, lacking)

    def _asks(self, owner: NodeId, topics: list[tuple[str, int]]) -> list[Letter]:
        return [
            Ask(owner, self._node, (), tuple(topics[at : at + ASKED_MAX]))
            for at in range(0, len(topics), ASKED_MAX)
        ]

    def _answer(self, node: NodeId, topics: Iterable[tuple[str, int]]) -> Outcome:
        """Send values of this node: deletions at once, the others when they were read."""
        deleted: list[Publication] = []
        wanted: list[str] = []
        for topic, known in topics:
            value = self.values.get(topic)
            if value is None or value.owner != self._node:
                continue
            if value.version < known and self._versions.is_sound(known):  # known to a former life
                self._versions.see(known)
                value = replace(value, version=self._versions.next())
                self._set(topic, value)
            if value.digest:
                wanted.append(topic)
            else:
                deleted.append(self._publication(topic, b"", 0, b"", value.version))
        outcome: Outcome = [*self._letters(node, deleted)]
        return [*outcome, ReadStored(node, tuple(wanted))] if wanted else outcome

    def read(self, event: StoredRead) -> list[Letter]:
        """The shell has read what a node asked for; what has changed meanwhile is on its way."""
        publications = [
            self._publication(v.topic, v.payload, v.qos, v.properties, known.version)
            for v in event.values
            if (known := self.values.get(v.topic)) is not None
            and (known.owner, known.digest) == (self._node, digest(v.payload))
        ]
        return self._letters(event.to, publications)

    def _publication(
        self, topic: str, payload: bytes, qos: int, properties: bytes, version: int
    ) -> Publication:
        return Publication(
            self._node, 0, 0, qos, topic, payload, True, properties=properties, version=version
        )

    def _letters(self, to: NodeId, publications: list[Publication]) -> list[Letter]:
        return parcels(to, self._node, publications, self._settings.repair_bytes)

    def _take(self, letter: Values) -> Outcome:
        outcome: Outcome = []
        for data in letter.publications:
            try:
                publication = decode_publication(data)
            except InvalidFrame:
                return [*outcome, Ignored("value that cannot be read")]
            value = Value(publication.version, letter.node, digest(publication.payload))
            known = self.values.get(publication.topic)
            is_ours = known is not None and known.owner == self._node
            is_kept = is_ours or self._wants(publication.topic)
            if not is_kept or not self._versions.is_sound(value.version):
                continue
            if not self._is_newer(publication.topic, value):
                continue
            self._replace(publication, value)
            if value.digest or (known is not None and known.digest):
                outcome.append(Store(publication))
            elif known is None:  # the broker may hold what a former life did not get to note
                self.distrust((publication.topic,))
        return outcome

    # ------------------------------------------------------------ time

    def fire(self) -> Outcome:
        """Do what is due."""
        now = self._now
        found = (*self._doubtful.take(now), *self._checks.sample(now), *self._full.step(now))
        due = tuple(dict.fromkeys(found))
        outcome: Outcome = [Survey(due)] if due else []
        outcome += self._list_unsure()
        outcome += [Ignored("retained version ahead of time")] * self._refused
        self._refused = 0
        self._look_back()
        outcome += self._teller.proceed(now)
        if self._save_at <= now:
            self._save_at = math.inf
            self._tidy()
            outcome.append(Memorise())
        return outcome

    def _look_back(self) -> None:
        """A former life may have ended before it cleared what nobody here wants any more."""
        if self._look_back_at <= self._now:
            self._look_back_at = math.inf
            self._doubt_left(self.values)

    def _tidy(self) -> None:
        """Forget deletions that are older than the lease, and when settled values changed."""
        oldest = self._versions.at(-self._settings.interest_lease)
        for topic, value in list(self.values.items()):
            if not value.digest and value.version < oldest:
                del self.values[topic]
                self._raced.pop(topic, None)
        self._checks.tidy(self._now, self.values)

    def next_deadline(self) -> float | None:
        """When `fire` is next due."""
        if self._teller.is_busy or self._refused:
            return self._now
        tables = self._doubtful.due, self._unsure.due, self._teller.due
        checks = self._checks.due, self._full.due
        due = min(self._look_back_at, self._save_at, *tables, *checks)
        return None if due == math.inf else due
