"""What a node may do, as its certificate says (protocol.md 12.4 to 12.7).

In a federation without certificates every node has `UNLIMITED`.
"""

from dataclasses import dataclass

from hansa.protocol.topics import covers, intersect, matches, split_share

ALL_TOPICS = ("#",)

OUTSIDE_CERTIFICATE = "publication outside the certificate of its origin"


@dataclass(frozen=True, slots=True)
class Rights:
    may_relay: bool = True
    """Whether paths may pass the node. If not, it is always the end of a path."""
    may_be_core: bool = True
    may_publish: tuple[str, ...] = ALL_TOPICS
    """Filters of the topics that clients behind the node may publish to; none: it only receives."""
    may_subscribe: tuple[str, ...] = ALL_TOPICS
    """Filters that cover everything that clients behind the node may receive."""
    issued_ms: int = 0
    """When the certificate was issued: a node cannot go back to an earlier one."""

    @property
    def limits_publishing(self) -> bool:
        return self.may_publish != ALL_TOPICS

    def allows_publishing(self, topic: str) -> bool:
        return not self.limits_publishing or any(matches(f, topic) for f in self.may_publish)

    def allows_receiving(self, topic: str) -> bool:
        return self.may_subscribe == ALL_TOPICS or any(
            matches(f, topic) for f in self.may_subscribe
        )

    def allows_interest(self, topic_filter: str) -> bool:
        """Whether a filter, without its share, is within the topics that the node may receive."""
        if self.may_subscribe == ALL_TOPICS:
            return True
        plain = split_share(topic_filter)[1]
        return any(covers(allowed, plain) for allowed in self.may_subscribe)

    def narrow(self, topic_filter: str) -> tuple[str, ...]:
        """Return the filters that match what a filter matches and the node may receive."""
        if self.allows_interest(topic_filter):
            return (topic_filter,)
        plain = split_share(topic_filter)[1]
        prefix = topic_filter[: len(topic_filter) - len(plain)]
        found = (intersect(plain, allowed) for allowed in self.may_subscribe)
        return tuple(dict.fromkeys(prefix + each for each in found if each is not None))


UNLIMITED = Rights()
NO_RIGHTS = Rights(may_relay=False, may_be_core=False, may_publish=(), may_subscribe=())
"""Of a node that is not known."""
