"""A federation as it was recorded: all that advice is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from hansa.protocol.interest.groups import group_of
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import matches, remove_covered
from hansa.topology.graph import Graph, LinkPair, NodeName, make_graph

DEFAULT_LINK_RTT_MS = 2.0
"""The round trip of a link where none was ever measured."""


@dataclass(frozen=True, slots=True)
class TopicFlow:
    """What one broker's clients published on one topic."""

    origin: NodeName
    topic: str
    publications: int
    payload_bytes: float
    """Of one publication, on average."""


@dataclass(frozen=True, slots=True)
class SampledPublication:
    """One of them, to be replayed."""

    at_s: float
    """Seconds after the first."""
    origin: NodeName
    topic: str
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedFederation:
    """Nodes, links, wishes and traffic."""

    nodes: tuple[NodeName, ...]
    """In the order of their ids."""
    links: Mapping[LinkPair, float]
    """With the round trip of each, in milliseconds."""
    interest: Mapping[NodeName, frozenset[str]]
    """The filters that each broker's clients want."""
    flows: tuple[TopicFlow, ...]
    cores: Mapping[str, NodeName] = field(default_factory=dict)
    """Who led each group; where that is not known, whoever comes first."""
    sample: tuple[SampledPublication, ...] = ()
    """Some of the traffic, as it came."""
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)

    @property
    def graph(self) -> Graph:
        """Who is linked with whom."""
        return make_graph(self.nodes, self.links)

    @property
    def median_link_rtt_ms(self) -> float:
        """What a link that nobody has measured is taken to cost: as much as others do."""
        return median(self.links.values()) if self.links else DEFAULT_LINK_RTT_MS

    def interested_nodes(self, topic: str) -> list[NodeName]:
        """Return the nodes whose clients want a topic."""
        return [
            node
            for node in self.nodes
            if any(matches(each, topic) for each in self.interest.get(node, ()))
        ]

    def groups(self) -> dict[str, list[NodeName]]:
        """Return every group with the nodes that want it, both in order."""
        found: dict[str, list[NodeName]] = {}
        for node in self.nodes:
            announced = remove_covered(self.interest.get(node, ()))
            groups = {group_of(each, self.protocol.group_depth) for each in announced}
            for group in sorted(groups):
                found.setdefault(group, []).append(node)
        return found

    def core(self, group: str, members: list[NodeName]) -> NodeName:
        """Return who leads a group: who did, or the first member."""
        core = self.cores.get(group)
        return core if core in members else members[0]

    # ------------------------------------------------------------ with something changed

    def with_link(self, link: LinkPair) -> "RecordedFederation":
        """Return it with one link more."""
        return replace(self, links={**self.links, link: self.median_link_rtt_ms})

    def without_link(self, link: LinkPair) -> "RecordedFederation":
        """Return it with one link less."""
        return replace(self, links={each: ms for each, ms in self.links.items() if each != link})

    def with_core(self, group: str, core: NodeName) -> "RecordedFederation":
        """Return it with another node leading a group."""
        return replace(self, cores={**self.cores, group: core})

    def with_group_depth(self, depth: int) -> "RecordedFederation":
        """Return it with filters joined that agree in their first levels."""
        return replace(self, protocol=replace(self.protocol, group_depth=depth), cores={})

    def with_moved_subscribers(
        self, topic_filter: str, start: NodeName, end: NodeName
    ) -> "RecordedFederation":
        """Return it with the subscribers of a filter at another broker."""
        interest = {
            **self.interest,
            start: self.interest[start] - {topic_filter},
            end: self.interest.get(end, frozenset()) | {topic_filter},
        }
        return replace(self, interest=interest, cores={})
