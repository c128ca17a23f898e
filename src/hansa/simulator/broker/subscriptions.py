"""The subscriptions of all clients, plain and shared."""

from collections import deque
from collections.abc import Iterable, Iterator

from hansa.mqtt.packets import Subscription
from hansa.mqtt.types import Reason
from hansa.simulator.broker.filter_tree import FilterTree, Subscriber
from hansa.simulator.broker.session import Session

_SHARE = "$share/"


class Subscriptions:
    __slots__ = ("_is_v2_1", "_plain", "_shared")

    def __init__(self, is_v2_1: bool) -> None:
        """Start without subscriptions."""
        self._is_v2_1 = is_v2_1
        self._plain = FilterTree()
        self._shared = FilterTree()

    def add(self, session: Session, subscription: Subscription, identifier: int) -> bool:
        """Add a subscription; return whether it is new.

        A repeated subscription replaces all options; in 2.0 only QoS and identifier.
        """
        group, topic_filter = split_share(subscription.topic_filter)
        added = Subscriber(
            session,
            subscription.qos,
            identifier,
            # Shared subscriptions also get the client's own publications.
            group is None and (subscription.no_local or session.is_bridge),
            subscription.retain_as_published or session.is_bridge,
        )
        session.filters[subscription.topic_filter] = None
        if group is None:
            node = self._plain.make_node(topic_filter)
            known = node.subscribers.setdefault(session.client_id, added)
        else:
            members = self._shared.make_node(topic_filter).groups.setdefault(group, deque())
            known = next((each for each in members if each.session is session), added)
            if known is added:
                members.append(added)
        known.qos = added.qos
        known.identifier = identifier
        if self._is_v2_1:
            known.no_local = added.no_local
            known.retain_as_published = added.retain_as_published
        return known is added

    def remove(self, session: Session, filters: Iterable[str]) -> bytes:
        """Remove subscriptions; return the reason codes."""
        return bytes(
            0 if self._remove(session, topic_filter) else Reason.NO_SUBSCRIPTION_EXISTED
            for topic_filter in filters
        )

    def remove_all(self, session: Session) -> None:
        for topic_filter in tuple(session.filters):
            self._remove(session, topic_filter)

    def _remove(self, session: Session, topic_filter: str) -> bool:
        if topic_filter not in session.filters:
            return False
        del session.filters[topic_filter]
        group, plain = split_share(topic_filter)
        tree = self._plain if group is None else self._shared
        node = tree.find_node(plain)
        assert node is not None
        if group is None:
            del node.subscribers[session.client_id]
        else:
            members = node.groups[group]
            members.remove(next(each for each in members if each.session is session))
            if not members:
                del node.groups[group]
        tree.prune(plain)
        return True

    def match(self, topic: str) -> Iterator[Subscriber]:
        """Iterate over the subscriptions that match a topic: first plain ones, then one of each
        share group, in turns and whether or not it is connected."""
        for node in self._plain.match(topic):
            yield from node.subscribers.values()
        for node in self._shared.match(topic):
            for members in node.groups.values():
                yield members[0]
                members.rotate(-1)

    def plain(self) -> Iterator[tuple[str, Subscriber]]:
        """Iterate over all plain subscriptions with their filters."""
        for topic_filter, node in self._plain.nodes():
            for subscriber in node.subscribers.values():
                yield topic_filter, subscriber


def split_share(topic_filter: str) -> tuple[str | None, str]:
    """Return the share name, if there is one, and the filter to match."""
    if not topic_filter.startswith(_SHARE):
        return None, topic_filter
    group, _, plain = topic_filter.removeprefix(_SHARE).partition("/")
    return group, plain
