"""The recorded federation that advice is based on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from hansa.protocol.interest.groups import group_of
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import matches, remove_covered
from hansa.topology.graph import Graph, LinkPair, NodeName, make_graph

DEFAULT_LINK_RTT_MS = 2.0
"""Round-trip time of a link if none was measured."""


@dataclass(frozen=True, slots=True)
class TopicFlow:
    """The publications of one broker's clients on one topic."""

    origin: NodeName
    topic: str
    publications: int
    payload_bytes: float
    """Mean per publication."""


@dataclass(frozen=True, slots=True)
class SampledPublication:
    at_s: float
    """Seconds after the first one."""
    origin: NodeName
    topic: str
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class RecordedFederation:
    """Nodes, links, interest and traffic."""

    nodes: tuple[NodeName, ...]
    """In the order of their ids."""
    links: Mapping[LinkPair, float]
    """Round-trip time of each link in milliseconds."""
    interest: Mapping[NodeName, frozenset[str]]
    """Filters to which the clients of each broker are subscribed."""
    flows: tuple[TopicFlow, ...]
    cores: Mapping[str, NodeName] = field(default_factory=dict)
    """The known cores of groups."""
    sample: tuple[SampledPublication, ...] = ()
    """Some of the recorded publications, in order."""
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)

    @property
    def graph(self) -> Graph:
        return make_graph(self.nodes, self.links)

    @property
    def median_link_rtt_ms(self) -> float:
        """Assumed round-trip time of a link that was not measured."""
        return median(self.links.values()) if self.links else DEFAULT_LINK_RTT_MS

    def interested_nodes(self, topic: str) -> list[NodeName]:
        """Return the nodes whose clients are subscribed to a topic."""
        return [
            node
            for node in self.nodes
            if any(matches(each, topic) for each in self.interest.get(node, ()))
        ]

    def groups(self) -> dict[str, list[NodeName]]:
        """Return every group with its interested nodes, both in order."""
        found: dict[str, list[NodeName]] = {}
        for node in self.nodes:
            announced = remove_covered(self.interest.get(node, ()))
            groups = {group_of(each, self.protocol.group_depth) for each in announced}
            for group in sorted(groups):
                found.setdefault(group, []).append(node)
        return found

    def core(self, group: str, members: list[NodeName]) -> NodeName:
        """Return the core of a group: the recorded one, or else the first member."""
        core = self.cores.get(group)
        return core if core in members else members[0]

    # ------------------------------------------------------------ changed copies

    def with_link(self, link: LinkPair) -> "RecordedFederation":
        return replace(self, links={**self.links, link: self.median_link_rtt_ms})

    def without_link(self, link: LinkPair) -> "RecordedFederation":
        return replace(self, links={each: ms for each, ms in self.links.items() if each != link})

    def with_core(self, group: str, core: NodeName) -> "RecordedFederation":
        return replace(self, cores={**self.cores, group: core})

    def with_group_depth(self, depth: int) -> "RecordedFederation":
        """Return a copy in which filters with equal first levels share a group."""
        return replace(self, protocol=replace(self.protocol, group_depth=depth), cores={})

    def with_moved_subscribers(
        self, topic_filter: str, start: NodeName, end: NodeName
    ) -> "RecordedFederation":
        """Return a copy with the subscribers of a filter moved to another broker."""
        interest = {
            **self.interest,
            start: self.interest[start] - {topic_filter},
            end: self.interest.get(end, frozenset()) | {topic_filter},
        }
        return replace(self, interest=interest, cores={})
