"""What is wanted: by the clients of this node's broker, and by all the other nodes.

`LocalInterest` decides what this node announces. `RemoteInterest` decides what it subscribes to at
its own broker, and knows from when on that is in force. Neither knows how the news travels.
"""

from collections import Counter
from collections.abc import Iterable

from hansa.protocol.effects import Effect, Subscribe, Unsubscribe
from hansa.protocol.interest.shared_subscriptions import Audience
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import FilterTrie, is_local_only, matches, minimal, split_share


class LocalInterest:
    """The filters that clients here want, without those that others of them cover.

    A filter is announced at once. It is withdrawn only after a linger, and not before everything
    announced since has been installed everywhere: a filter that takes its place must stand first.
    When more would be announced than one node may, the oldest of these go at once. So does a share:
    while it stands it has its turn, and what comes then is missed by its consumers elsewhere.
    """

    def __init__(self, settings: ProtocolSettings) -> None:
        """Start with nobody wanting anything."""
        self._settings = settings
        self.filters: dict[str, None] = {}
        """All that is wanted here, as subscribed."""
        self.wanted: FilterTrie[int] = FilterTrie()
        """The same without `$share/…/`: what decides whether a topic is delivered here."""
        self._plain: FilterTrie[None] = FilterTrie()
        self._roots: FilterTrie[None] = FilterTrie()  # the plain filters that no other covers
        self._announced: dict[str, None] = {}
        self._to_add: dict[str, None] = {}
        self.leaving: dict[str, float] = {}
        """What is announced and no longer wanted, since when."""
        self._is_known = False
        self._former: dict[str, None] = {}  # plain filters that were wanted once, the newest last
        self._former_by_topic: FilterTrie[None] = FilterTrie()

    def change(self, added: Iterable[str], removed: Iterable[str], now: float) -> int:
        """Note what clients want; return how many filters had to be refused for the bound."""
        self._is_known = True
        refused = 0
        for topic_filter in added:
            if topic_filter in self.filters or is_local_only(topic_filter):
                continue
            if len(self.filters) >= self._settings.filters_per_node_max:
                refused += 1
            else:
                self._add(topic_filter, now)
        for topic_filter in removed:
            if topic_filter in self.filters:
                self._remove(topic_filter, now)
        return refused

    def wants_plainly(self, topic: str) -> bool:
        """Whether a client wants a topic for itself, not only as one of a share."""
        return bool(self._plain.match(topic))

    def was_announced(self, topic: str) -> bool:
        """Whether this node may have asked others for a topic: clients want it or wanted it. Until
        it is known what they want, a former life may have asked for anything."""
        if not self._is_known or self.wanted.match(topic):
            return True
        return bool(self._former_by_topic.match(topic))

    def due(self, installed: bool, now: float) -> tuple[list[str], list[str]]:
        """Return which filters to announce and which to withdraw now, and take them as told."""
        added = list(self._to_add)
        self._to_add.clear()
        self._announced.update(dict.fromkeys(added))
        settled = installed and not added
        excess = len(self._announced) - self._settings.filters_per_node_max
        removed = [
            name
            for place, (name, since) in enumerate(self.leaving.items())
            if place < excess or now >= self._end(name, since, settled)
        ]
        for name in removed:
            del self.leaving[name]
            del self._announced[name]
        return added, removed

    def next_deadline(self, installed: bool) -> float | None:
        """When a withdrawal is due."""
        if not self.leaving:
            return None
        return min(self._end(name, since, installed) for name, since in self.leaving.items())

    def _end(self, name: str, since: float, settled: bool) -> float:
        if split_share(name)[0] is not None:
            return since
        linger = self._settings.linger
        return since + (linger if settled else max(linger, self._settings.withdraw_patience))

    def _add(self, topic_filter: str, now: float) -> None:
        self.filters[topic_filter] = None
        share, plain = split_share(topic_filter)
        self.wanted.put(plain, (self.wanted.get(plain) or 0) + 1)
        if share is not None:
            self._wish(topic_filter)
            return
        self._plain.put(plain, None)
        if self._roots.covered_by(plain):
            return
        for narrower in self._roots.covered(plain):
            self._roots.remove(narrower)
            self._unwish(narrower, now)
        self._roots.put(plain, None)
        self._wish(plain)

    def _remove(self, topic_filter: str, now: float) -> None:
        del self.filters[topic_filter]
        share, plain = split_share(topic_filter)
        holders = (self.wanted.get(plain) or 0) - 1
        if holders:
            self.wanted.put(plain, holders)
        else:
            self.wanted.remove(plain)
            self._note_former(plain)
        if share is not None:
            self._unwish(topic_filter, now)
            return
        self._plain.remove(plain)
        if not self._roots.remove(plain):
            return
        self._unwish(plain, now)
        for uncovered in minimal(self._plain.covered(plain)):
            if not self._roots.covered_by(uncovered):
                self._roots.put(uncovered, None)
                self._wish(uncovered)

    def _note_former(self, plain: str) -> None:
        """Remember what was wanted: publications that are owed for it are still under way."""
        self._former.pop(plain, None)
        self._former[plain] = None
        self._former_by_topic.put(plain, None)
        if len(self._former) > self._settings.filters_per_node_max:
            oldest = next(iter(self._former))
            del self._former[oldest]
            self._former_by_topic.remove(oldest)

    def _wish(self, name: str) -> None:
        if self.leaving.pop(name, None) is None:
            self._to_add[name] = None

    def _unwish(self, name: str, now: float) -> None:
        if name in self._to_add:
            del self._to_add[name]
        else:
            self.leaving[name] = now


class RemoteInterest:
    """What the other nodes want here, and whose wishes the broker has granted.

    A node's interest is *in force* once every filter of it is granted and, where there is a disk,
    remembered there: nothing published here from then on can be missed.
    """

    def __init__(self, durable: bool = False) -> None:
        """Start with nothing wanted. Only if `durable`, what is wanted has to be remembered."""
        self._durable = durable
        self._unsaved: dict[NodeId, int] = {}
        self.unsaved: dict[NodeId, int] = {}
        """What `take_unsaved` returns next."""
        self._saves = 0
        self.wanters: dict[str, dict[NodeId, int]] = {}
        """Per plain filter, the nodes that want it, each with how often."""
        self.shares: dict[str, dict[NodeId, None]] = {}
        """Per shared subscription, with its group, the nodes that have consumers of it."""
        self._by_topic: FilterTrie[dict[NodeId, int]] = FilterTrie()
        self._unsorted: dict[str, None] = {}  # not yet in the trie: nobody has asked since
        self.granted: dict[str, None] = {}
        self._stamps: dict[NodeId, Stamp] = {}
        self._waiting: dict[NodeId, int] = {}
        self.in_force: dict[NodeId, Stamp] = {}
        """Per node, the newest version of its interest that is in force here."""
        self.settled: dict[NodeId, None] = {}
        """What `take_settled` returns next."""

    def change(
        self, node: NodeId, added: Iterable[str], removed: Iterable[str], stamp: Stamp
    ) -> tuple[list[str], list[str]]:
        """A node's filters changed; return what to subscribe to and what to give up."""
        self._stamps[node] = stamp
        self.doubt(node)
        subscribe = self._add(node, added)
        unsubscribe = self._remove(node, removed)
        self._settle(node)
        return subscribe, unsubscribe

    def grant(self, filters: Iterable[str]) -> list[str]:
        """The broker has granted these subscriptions; return those that are new."""
        asked = dict.fromkeys(filters)
        new = [name for name in asked if name not in self.granted and name in self.wanters]
        for name in new:
            self.granted[name] = None
            for node in self.wanters[name]:
                self._waiting[node] -= 1
                self._settle(node)
        return new

    def doubt(self, node: NodeId) -> None:
        """What the disk remembers of a node is no longer true."""
        if self._durable:
            self._saves += 1
            self._unsaved[node] = self._saves
            self.unsaved[node] = self._saves

    def take_unsaved(self) -> list[tuple[int, NodeId]]:
        """Return the nodes to remember anew, each with the number of the change: the newest last,
        for whoever has saved that one has saved them all."""
        unsaved, self.unsaved = self.unsaved, {}
        return sorted((number, node) for node, number in unsaved.items())

    def note(self, number: int) -> None:
        """The disk has everything up to this change."""
        for node, unsaved in list(self._unsaved.items()):
            if unsaved <= number:
                del self._unsaved[node]
                if node in self._stamps:
                    self._settle(node)

    def audience(self, topic: str) -> Audience:
        """Return the nodes that want a topic, in reach or not, and its shares."""
        for name in self._unsorted:
            self._by_topic.put(name, self.wanters[name])
        self._unsorted.clear()
        wishes: Counter[NodeId] = Counter()
        for holders in self._by_topic.match(topic):
            wishes.update(holders)
        shares = {
            name: tuple(nodes)
            for name, nodes in self.shares.items()
            if matches(split_share(name)[1], topic)
        }
        for nodes in shares.values():
            wishes.subtract(nodes)
        return Audience(tuple(node for node, count in wishes.items() if count), shares)

    def receivers(self, topic: str) -> tuple[NodeId, ...]:
        """Return the nodes that want all publications to a topic."""
        return self.audience(topic).nodes

    def promised(self, topic: str) -> list[NodeId]:
        """Return those of them whose newest interest is in force."""
        return [
            node
            for node in self.receivers(topic)
            if self.in_force.get(node) == self._stamps[node] and not self._waiting.get(node)
        ]

    def take_settled(self) -> list[NodeId]:
        """Return the nodes whose interest came into force since last asked."""
        settled, self.settled = self.settled, {}
        return list(settled)

    def forget(self, node: NodeId, filters: Iterable[str]) -> list[str]:
        """A node's lease has ended; return what to give up."""
        unsubscribe = self._remove(node, filters)
        for table in (self._stamps, self._waiting, self.in_force, self.settled):
            table.pop(node, None)
        self.doubt(node)
        return unsubscribe

    def _add(self, node: NodeId, filters: Iterable[str]) -> list[str]:
        subscribe: list[str] = []
        for topic_filter in filters:
            plain = split_share(topic_filter)[1]
            if plain not in self.wanters:
                self.wanters[plain] = {}
                self._unsorted[plain] = None
                subscribe.append(plain)
            holders = self.wanters[plain]
            if plain != topic_filter:
                self.shares.setdefault(topic_filter, {})[node] = None
            if node not in holders and plain not in self.granted:
                self._waiting[node] = self._waiting.get(node, 0) + 1
            holders[node] = holders.get(node, 0) + 1
        return subscribe

    def _remove(self, node: NodeId, filters: Iterable[str]) -> list[str]:
        unsubscribe: list[str] = []
        for topic_filter in filters:
            plain = split_share(topic_filter)[1]
            if plain != topic_filter:
                self._leave_share(node, topic_filter)
            holders = self.wanters[plain]
            holders[node] -= 1
            if holders[node]:
                continue
            del holders[node]
            if plain not in self.granted:
                self._waiting[node] -= 1
            if not holders:
                del self.wanters[plain]
                if plain in self._unsorted:
                    del self._unsorted[plain]
                else:
                    self._by_topic.remove(plain)
                self.granted.pop(plain, None)
                unsubscribe.append(plain)
        return unsubscribe

    def _leave_share(self, node: NodeId, share: str) -> None:
        del self.shares[share][node]
        if not self.shares[share]:
            del self.shares[share]

    def _settle(self, node: NodeId) -> None:
        if not self._waiting.get(node) and node not in self._unsaved:
            self.in_force[node] = self._stamps[node]
            self.settled[node] = None


def subscriptions(subscribe: list[str], unsubscribe: list[str]) -> list[Effect]:
    """Return the orders for the broker, if there are any."""
    orders = ((Subscribe, subscribe), (Unsubscribe, unsubscribe))
    return [order(tuple(filters)) for order, filters in orders if filters]
