"""A federation as it was recorded: all that advice is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from hansa.protocol.interest.groups import group_of
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.topics import matches, minimal
from hansa.topology.graph import Graph, Name, Pair, graph_of

LINK_MS = 2.0
"""The round trip of a link where none was ever measured."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What one broker's clients published on one topic."""

    origin: Name
    topic: str
    publications: int
    payload_bytes: float
    """Of one publication, on average."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One of them, to be replayed."""

    at_s: float
    """Seconds after the first."""
    origin: Name
    topic: str
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """Nodes, links, wishes and traffic."""

    nodes: tuple[Name, ...]
    """In the order of their ids."""
    links: Mapping[Pair, float]
    """With the round trip of each, in milliseconds."""
    wants: Mapping[Name, frozenset[str]]
    """The filters that each broker's clients want."""
    flows: tuple[Flow, ...]
    cores: Mapping[str, Name] = field(default_factory=dict)
    """Who led each group; where that is not known, whoever comes first."""
    sample: tuple[Publication, ...] = ()
    """Some of the traffic, as it came."""
    protocol: ProtocolSettings = field(default_factory=ProtocolSettings)

    @property
    def graph(self) -> Graph:
        """Who is linked with whom."""
        return graph_of(self.nodes, self.links)

    @property
    def link_ms(self) -> float:
        """What a link that nobody has measured is taken to cost: as much as others do."""
        return median(self.links.values()) if self.links else LINK_MS

    def wanters(self, topic: str) -> list[Name]:
        """Return the nodes whose clients want a topic."""
        return [
            node
            for node in self.nodes
            if any(matches(each, topic) for each in self.wants.get(node, ()))
        ]

    def groups(self) -> dict[str, list[Name]]:
        """Return every group with the nodes that want it, both in order."""
        found: dict[str, list[Name]] = {}
        for node in self.nodes:
            announced = minimal(self.wants.get(node, ()))
            groups = {group_of(each, self.protocol.group_depth) for each in announced}
            for group in sorted(groups):
                found.setdefault(group, []).append(node)
        return found

    def core(self, group: str, members: list[Name]) -> Name:
        """Return who leads a group: who did, or the first member."""
        core = self.cores.get(group)
        return core if core in members else members[0]

    # ------------------------------------------------------------ with something changed

    def with_link(self, link: Pair) -> "Recorded":
        """Return it with one link more."""
        return replace(self, links={**self.links, link: self.link_ms})

    def without_link(self, link: Pair) -> "Recorded":
        """Return it with one link less."""
        return replace(self, links={each: ms for each, ms in self.links.items() if each != link})

    def with_core(self, group: str, core: Name) -> "Recorded":
        """Return it with another node leading a group."""
        return replace(self, cores={**self.cores, group: core})

    def with_depth(self, depth: int) -> "Recorded":
        """Return it with filters joined that agree in their first levels."""
        return replace(self, protocol=replace(self.protocol, group_depth=depth), cores={})

    def with_moved(self, topic_filter: str, start: Name, end: Name) -> "Recorded":
        """Return it with the subscribers of a filter at another broker."""
        wants = {
            **self.wants,
            start: self.wants[start] - {topic_filter},
            end: self.wants.get(end, frozenset()) | {topic_filter},
        }
        return replace(self, wants=wants, cores={})
