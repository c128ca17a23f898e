"""What is wanted: by the clients of this node's broker, and by all the other nodes.

`LocalInterest` decides what this node announces. `RemoteInterest` decides what it subscribes to at
its own broker, and knows from when on that is in force. Neither knows how the news travels.
"""

from collections import Counter
from collections.abc import Iterable

from hansa.protocol.effects import Effect, SubscribeAtBroker, UnsubscribeAtBroker
from hansa.protocol.interest.shared_subscriptions import TopicInterest
from hansa.protocol.membership.records import Stamp
from hansa.protocol.model import NodeId
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import FilterTrie, is_local_only, matches, remove_covered, split_share


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
        self.plain_filters: FilterTrie[int] = FilterTrie()
        """The same without `$share/…/`: what decides whether a topic is delivered here."""
        self._unshared_filters: FilterTrie[None] = FilterTrie()
        self._uncovered_filters: FilterTrie[None] = (
            FilterTrie()
        )  # the plain filters that no other covers
        self._announced: dict[str, None] = {}
        self._unannounced: dict[str, None] = {}
        self.withdrawing: dict[str, float] = {}
        """What is announced and no longer wanted, since when."""
        self._is_known = False
        self._former: dict[str, None] = {}  # plain filters that were wanted once, the newest last
        self._former_by_topic: FilterTrie[None] = FilterTrie()

    def apply_change(self, added: Iterable[str], removed: Iterable[str], now: float) -> int:
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

    def has_plain_subscriber(self, topic: str) -> bool:
        """Whether a client wants a topic for itself, not only as one of a share."""
        return bool(self._unshared_filters.match(topic))

    def was_announced(self, topic: str) -> bool:
        """Whether this node may have asked others for a topic: clients want it or wanted it. Until
        it is known what they want, a former life may have asked for anything."""
        if not self._is_known or self.plain_filters.match(topic):
            return True
        return bool(self._former_by_topic.match(topic))

    def pop_due_changes(self, installed: bool, now: float) -> tuple[list[str], list[str]]:
        """Return which filters to announce and which to withdraw now, and take them as told."""
        added = list(self._unannounced)
        self._unannounced.clear()
        self._announced.update(dict.fromkeys(added))
        can_withdraw = installed and not added
        excess = len(self._announced) - self._settings.filters_per_node_max
        removed = [
            name
            for place, (name, since) in enumerate(self.withdrawing.items())
            if place < excess or now >= self._withdrawal_due(name, since, can_withdraw)
        ]
        for name in removed:
            del self.withdrawing[name]
            del self._announced[name]
        return added, removed

    def next_deadline(self, installed: bool) -> float | None:
        """When a withdrawal is due."""
        if not self.withdrawing:
            return None
        return min(
            self._withdrawal_due(name, since, installed) for name, since in self.withdrawing.items()
        )

    def _withdrawal_due(self, name: str, since: float, can_withdraw: bool) -> float:
        if split_share(name)[0] is not None:
            return since
        linger = self._settings.linger
        return since + (linger if can_withdraw else max(linger, self._settings.withdraw_delay_max))

    def _add(self, topic_filter: str, now: float) -> None:
        self.filters[topic_filter] = None
        share, plain = split_share(topic_filter)
        self.plain_filters.put(plain, (self.plain_filters.get(plain) or 0) + 1)
        if share is not None:
            self._schedule_announcement(topic_filter)
            return
        self._unshared_filters.put(plain, None)
        if self._uncovered_filters.is_covered(plain):
            return
        for narrower in self._uncovered_filters.covered(plain):
            self._uncovered_filters.remove(narrower)
            self._schedule_withdrawal(narrower, now)
        self._uncovered_filters.put(plain, None)
        self._schedule_announcement(plain)

    def _remove(self, topic_filter: str, now: float) -> None:
        del self.filters[topic_filter]
        share, plain = split_share(topic_filter)
        holders = (self.plain_filters.get(plain) or 0) - 1
        if holders:
            self.plain_filters.put(plain, holders)
        else:
            self.plain_filters.remove(plain)
            self._note_former(plain)
        if share is not None:
            self._schedule_withdrawal(topic_filter, now)
            return
        self._unshared_filters.remove(plain)
        if not self._uncovered_filters.remove(plain):
            return
        self._schedule_withdrawal(plain, now)
        for uncovered in remove_covered(self._unshared_filters.covered(plain)):
            if not self._uncovered_filters.is_covered(uncovered):
                self._uncovered_filters.put(uncovered, None)
                self._schedule_announcement(uncovered)

    def _note_former(self, plain: str) -> None:
        """Remember what was wanted: publications that are owed for it are still under way."""
        self._former.pop(plain, None)
        self._former[plain] = None
        self._former_by_topic.put(plain, None)
        if len(self._former) > self._settings.filters_per_node_max:
            oldest = next(iter(self._former))
            del self._former[oldest]
            self._former_by_topic.remove(oldest)

    def _schedule_announcement(self, name: str) -> None:
        if self.withdrawing.pop(name, None) is None:
            self._unannounced[name] = None

    def _schedule_withdrawal(self, name: str, now: float) -> None:
        if name in self._unannounced:
            del self._unannounced[name]
        else:
            self.withdrawing[name] = now


class RemoteInterest:
    """What the other nodes want here, and whose wishes the broker has granted.

    A node's interest is *in force* once every filter of it is granted and, where there is a disk,
    remembered there: nothing published here from then on can be missed.
    """

    def __init__(self, durable: bool = False) -> None:
        """Start with nothing wanted. Only if `durable`, what is wanted has to be remembered."""
        self._durable = durable
        self._unpersisted: dict[NodeId, int] = {}
        self.to_persist: dict[NodeId, int] = {}
        """What `take_unsaved` returns next."""
        self._last_save_id = 0
        self.nodes_by_filter: dict[str, dict[NodeId, int]] = {}
        """Per plain filter, the nodes that want it, each with how often."""
        self.nodes_by_share: dict[str, dict[NodeId, None]] = {}
        """Per shared subscription, with its group, the nodes that have consumers of it."""
        self._filter_trie: FilterTrie[dict[NodeId, int]] = FilterTrie()
        self._not_in_trie: dict[str, None] = {}  # not yet in the trie: nobody has asked since
        self.granted: dict[str, None] = {}
        self._stamps: dict[NodeId, Stamp] = {}
        self._ungranted_counts: dict[NodeId, int] = {}
        self.in_force: dict[NodeId, Stamp] = {}
        """Per node, the newest version of its interest that is in force here."""
        self.newly_in_force: dict[NodeId, None] = {}
        """What `take_settled` returns next."""

    def apply_change(
        self, node: NodeId, added: Iterable[str], removed: Iterable[str], stamp: Stamp
    ) -> tuple[list[str], list[str]]:
        """A node's filters changed; return what to subscribe to and what to give up."""
        self._stamps[node] = stamp
        self.mark_unpersisted(node)
        subscribe = self._add(node, added)
        unsubscribe = self._remove(node, removed)
        self._update_in_force(node)
        return subscribe, unsubscribe

    def mark_granted(self, filters: Iterable[str]) -> list[str]:
        """The broker has granted these subscriptions; return those that are new."""
        asked = dict.fromkeys(filters)
        new = [name for name in asked if name not in self.granted and name in self.nodes_by_filter]
        for name in new:
            self.granted[name] = None
            for node in self.nodes_by_filter[name]:
                self._ungranted_counts[node] -= 1
                self._update_in_force(node)
        return new

    def mark_unpersisted(self, node: NodeId) -> None:
        """What the disk remembers of a node is no longer true."""
        if self._durable:
            self._last_save_id += 1
            self._unpersisted[node] = self._last_save_id
            self.to_persist[node] = self._last_save_id

    def drain_to_persist(self) -> list[tuple[int, NodeId]]:
        """Return the nodes to remember anew, each with the number of the change: the newest last,
        for whoever has saved that one has saved them all."""
        unsaved, self.to_persist = self.to_persist, {}
        return sorted((number, node) for node, number in unsaved.items())

    def mark_persisted(self, save_id: int) -> None:
        """The disk has everything up to this change."""
        for node, unsaved in list(self._unpersisted.items()):
            if unsaved <= save_id:
                del self._unpersisted[node]
                if node in self._stamps:
                    self._update_in_force(node)

    def topic_interest(self, topic: str) -> TopicInterest:
        """Return the nodes that want a topic, in reach or not, and its shares."""
        for name in self._not_in_trie:
            self._filter_trie.put(name, self.nodes_by_filter[name])
        self._not_in_trie.clear()
        match_counts: Counter[NodeId] = Counter()
        for holders in self._filter_trie.match(topic):
            match_counts.update(holders)
        shares = {
            name: tuple(nodes)
            for name, nodes in self.nodes_by_share.items()
            if matches(split_share(name)[1], topic)
        }
        for nodes in shares.values():
            match_counts.subtract(nodes)
        return TopicInterest(tuple(node for node, count in match_counts.items() if count), shares)

    def receivers(self, topic: str) -> tuple[NodeId, ...]:
        """Return the nodes that want all publications to a topic."""
        return self.topic_interest(topic).nodes

    def receivers_in_force(self, topic: str) -> list[NodeId]:
        """Return those of them whose newest interest is in force."""
        return [
            node
            for node in self.receivers(topic)
            if self.in_force.get(node) == self._stamps[node]
            and not self._ungranted_counts.get(node)
        ]

    def drain_newly_in_force(self) -> list[NodeId]:
        """Return the nodes whose interest came into force since last asked."""
        settled, self.newly_in_force = self.newly_in_force, {}
        return list(settled)

    def expire_node(self, node: NodeId, filters: Iterable[str]) -> list[str]:
        """A node's lease has ended; return what to give up."""
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
                self.nodes_by_share.setdefault(topic_filter, {})[node] = None
            if node not in holders and plain not in self.granted:
                self._ungranted_counts[node] = self._ungranted_counts.get(node, 0) + 1
            holders[node] = holders.get(node, 0) + 1
        return subscribe

    def _remove(self, node: NodeId, filters: Iterable[str]) -> list[str]:
        unsubscribe: list[str] = []
        for topic_filter in filters:
            plain = split_share(topic_filter)[1]
            if plain != topic_filter:
                self._leave_share(node, topic_filter)
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

    def _leave_share(self, node: NodeId, share: str) -> None:
        del self.nodes_by_share[share][node]
        if not self.nodes_by_share[share]:
            del self.nodes_by_share[share]

    def _update_in_force(self, node: NodeId) -> None:
        if not self._ungranted_counts.get(node) and node not in self._unpersisted:
            self.in_force[node] = self._stamps[node]
            self.newly_in_force[node] = None


def subscription_commands(subscribe: list[str], unsubscribe: list[str]) -> list[Effect]:
    """Return the orders for the broker, if there are any."""
    commands = ((SubscribeAtBroker, subscribe), (UnsubscribeAtBroker, unsubscribe))
    return [order(tuple(filters)) for order, filters in commands if filters]
