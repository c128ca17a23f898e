"""The filters that other nodes announced: what this node subscribes to at its own broker.

`RemoteInterest` knows which nodes are interested in a topic, and since when a node's interest is in
force here. Its size is bounded by the database, which refuses filters beyond `filters_max`.
"""

from collections import Counter
from collections.abc import Iterable

from hansa.protocol.effects import Effect, SubscribeAtBroker, UnsubscribeAtBroker
from hansa.protocol.interest.shared_subscriptions import TopicInterest
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId
from hansa.protocol.topics import FilterTrie, split_share


class RemoteInterest:
    """Filters of the other nodes, and which of them the broker has granted.

    A node's interest is *in force* once the broker has granted every filter of it and, if there is
    a disk, the interest is stored. Every matching publication from then on is captured.
    """

    def __init__(self, durable: bool = False) -> None:
        """`durable`: interest is in force only after it has been persisted."""
        self._durable = durable
        self._unpersisted: dict[NodeId, int] = {}
        self.to_persist: dict[NodeId, int] = {}
        """What `drain_to_persist` returns next."""
        self._last_save_id = 0
        self.nodes_by_filter: dict[str, dict[NodeId, int]] = {}
        """Per filter without `$share/…/`, how often each node announced it."""
        self.shares_by_filter: dict[str, dict[str, dict[NodeId, None]]] = {}
        """Per filter without `$share/…/`, the shared subscriptions (`$share/group/filter`) to it,
        each with the nodes that have consumers."""
        self._filter_trie: FilterTrie[dict[NodeId, int]] = FilterTrie()
        self._not_in_trie: dict[str, None] = {}  # until the next look-up of a topic
        self.granted: dict[str, None] = {}
        self._stamps: dict[NodeId, Stamp] = {}
        self._ungranted_counts: dict[NodeId, int] = {}
        self.in_force: dict[NodeId, Stamp] = {}
        """Per node, the newest version of its interest that is in force here."""
        self.newly_in_force: dict[NodeId, None] = {}
        """What `drain_newly_in_force` returns next."""

    def apply_change(
        self, node: NodeId, added: Iterable[str], removed: Iterable[str], stamp: Stamp
    ) -> tuple[list[str], list[str]]:
        """Apply a change of a node's filters; return what to subscribe and unsubscribe."""
        self._stamps[node] = stamp
        self.mark_unpersisted(node)
        subscribe = self._add(node, added)
        unsubscribe = self._remove(node, removed)
        self._update_in_force(node)
        return subscribe, unsubscribe

    def mark_granted(self, filters: Iterable[str]) -> list[str]:
        """The broker granted these subscriptions; return those that were not granted before."""
        unique = dict.fromkeys(filters)
        new = [name for name in unique if name not in self.granted and name in self.nodes_by_filter]
        for name in new:
            self.granted[name] = None
            for node in self.nodes_by_filter[name]:
                self._ungranted_counts[node] -= 1
                self._update_in_force(node)
        return new

    def mark_unpersisted(self, node: NodeId) -> None:
        """The stored interest of a node is out of date."""
        if self._durable:
            self._last_save_id += 1
            self._unpersisted[node] = self._last_save_id
            self.to_persist[node] = self._last_save_id

    def drain_to_persist(self) -> list[tuple[int, NodeId]]:
        """Return (save id, node) of every node to persist, ordered: a save that reaches one id
        includes all smaller ones."""
        unsaved, self.to_persist = self.to_persist, {}
        return sorted((number, node) for node, number in unsaved.items())

    def mark_persisted(self, save_id: int) -> None:
        """The disk holds every change up to this id."""
        for node, unsaved in list(self._unpersisted.items()):
            if unsaved <= save_id:
                del self._unpersisted[node]
                if node in self._stamps:
                    self._update_in_force(node)

    def topic_interest(self, topic: str) -> TopicInterest:
        """Return the nodes interested in a topic, reachable or not, and its shares."""
        self._update_trie()
        match_counts: Counter[NodeId] = Counter()
        for holders in self._filter_trie.match(topic):
            match_counts.update(holders)
        shares: dict[str, tuple[NodeId, ...]] = {}
        for plain in self._filter_trie.covering(topic) if self.shares_by_filter else ():
            for share, holding in self.shares_by_filter.get(plain, {}).items():
                shares[share] = tuple(holding)
        for nodes in shares.values():
            match_counts.subtract(nodes)
        return TopicInterest(tuple(node for node, count in match_counts.items() if count), shares)

    def matching_filters(self, topic: str) -> list[str]:
        """Return, sorted, the filters of other nodes that match a topic, without `$share/…/`."""
        self._update_trie()
        return self._filter_trie.covering(topic)

    def receivers(self, topic: str) -> tuple[NodeId, ...]:
        """Return the nodes that get every publication to a topic."""
        return self.topic_interest(topic).nodes

    def receivers_in_force(self, topic: str) -> list[NodeId]:
        """Return the receivers whose newest interest is in force."""
        return [
            node
            for node in self.receivers(topic)
            if self.in_force.get(node) == self._stamps[node]
            and not self._ungranted_counts.get(node)
        ]

    def _update_trie(self) -> None:
        for name in self._not_in_trie:
            self._filter_trie.put(name, self.nodes_by_filter[name])
        self._not_in_trie.clear()

    def drain_newly_in_force(self) -> list[NodeId]:
        """Return the nodes whose interest came into force since the last call."""
        settled, self.newly_in_force = self.newly_in_force, {}
        return list(settled)

    def expire_node(self, node: NodeId, filters: Iterable[str]) -> list[str]:
        """A node's lease ended; return the filters to unsubscribe."""
        unsubscribe = self._remove(node, filters)
        for table in (self._stamps, self._ungranted_counts, self.in_force, self.newly_in_force):
            table.pop(node, None)
        self.mark_unpersisted(node)
        return unsubscribe

    def _add(self, node: NodeId, filters: Iterable[str]) -> list[str]:
        subscribe: list[str] = []
        for topic_filter in filters:
            plain = split_share(topic_filter)[1]
            if plain not in self.nodes_by_filter:
                self.nodes_by_filter[plain] = {}
                self._not_in_trie[plain] = None
                subscribe.append(plain)
            holders = self.nodes_by_filter[plain]
            if plain != topic_filter:
                shares = self.shares_by_filter.setdefault(plain, {})
                shares.setdefault(topic_filter, {})[node] = None
            if node not in holders and plain not in self.granted:
                self._ungranted_counts[node] = self._ungranted_counts.get(node, 0) + 1
            holders[node] = holders.get(node, 0) + 1
        return subscribe

    def _remove(self, node: NodeId, filters: Iterable[str]) -> list[str]:
        unsubscribe: list[str] = []
        for topic_filter in filters:
            plain = split_share(topic_filter)[1]
            if plain != topic_filter:
                self._leave_share(node, topic_filter, plain)
            holders = self.nodes_by_filter[plain]
            holders[node] -= 1
            if holders[node]:
                continue
            del holders[node]
            if plain not in self.granted:
                self._ungranted_counts[node] -= 1
            if not holders:
                del self.nodes_by_filter[plain]
                if plain in self._not_in_trie:
                    del self._not_in_trie[plain]
                else:
                    self._filter_trie.remove(plain)
                self.granted.pop(plain, None)
                unsubscribe.append(plain)
        return unsubscribe

    def _leave_share(self, node: NodeId, share: str, plain: str) -> None:
        shares = self.shares_by_filter[plain]
        del shares[share][node]
        if not shares[share]:
            del shares[share]
        if not shares:
            del self.shares_by_filter[plain]

    def _update_in_force(self, node: NodeId) -> None:
        if not self._ungranted_counts.get(node) and node not in self._unpersisted:
            self.in_force[node] = self._stamps[node]
            self.newly_in_force[node] = None


def subscription_commands(subscribe: list[str], unsubscribe: list[str]) -> list[Effect]:
    commands = ((SubscribeAtBroker, subscribe), (UnsubscribeAtBroker, unsubscribe))
    return [order(tuple(filters)) for order, filters in commands if filters]
