"""The simulation of areas: sizes of the wire format, graphs, routes."""

from dataclasses import astuple

import pytest
from bench.areas import (
    WORKLOADS,
    Areas,
    Federation,
    Graph,
    Publication,
    Workload,
    measure_areas,
    measure_flat,
)

from bench import areas
from hansa.agent.links.stream import LENGTH
from hansa.protocol.membership.records import ClaimsRecord, InterestRecord
from hansa.protocol.model import MAC_BYTES, GroupId, NodeId
from hansa.protocol.model import Publication as RealPublication
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    CoreAnnouncement,
    Heartbeat,
    InterestAck,
    InterestAcks,
    Update,
)

NODE, OTHER = NodeId((1 << 63) + 1), NodeId((1 << 63) + 2)
EPOCH = 1_760_000_000_000
SIGNATURE = bytes(64)
NAME = "a/b"
NAME_BYTES = len(NAME) + 1


def size(frame: Update | CoreAnnouncement | InterestAcks | Heartbeat | RealPublication) -> int:
    return LENGTH.size + len(encode(frame))


def test_sizes_are_those_of_the_codec():
    change = (NODE, EPOCH, 7, 6, (NAME,), (), 0, 1, SIGNATURE)
    update = Update((InterestRecord(*change),))
    announcement = CoreAnnouncement(
        NODE, EPOCH, 9, 3, (OTHER,), ClaimsRecord(*change), (), SIGNATURE
    )
    ack = InterestAck(NODE, EPOCH, 7, OTHER, EPOCH, 1_234, 3, (), bytes(MAC_BYTES))
    found = {
        "UPDATE_BYTES": size(update) - NAME_BYTES,
        "ANNOUNCEMENT_BYTES": size(announcement) - NAME_BYTES,
        "ACK_BYTES": size(InterestAcks((ack, ack))) - size(InterestAcks((ack,))),
        "HEARTBEATS_BYTES": 2 * size(Heartbeat(100, 100, 500_000, NODE)),
        "RECEIVER_BYTES": publication_bytes(3) - publication_bytes(2),
    }
    assert found == {name: getattr(areas, name) for name in found}


def publication_bytes(receivers: int) -> int:
    return size(
        RealPublication(
            *(NODE, EPOCH, 5, 2, NAME, b""),
            target_groups=(GroupId(1),),
            receivers=((OTHER, 4),) * receivers,
            macs=bytes(MAC_BYTES) * receivers,
        )
    )


def test_flood_crosses_links_between_equal_distances_twice():
    triangle = Graph([(0, 1), (1, 2), (2, 0)])
    assert triangle.flood == (4 / 3, 2 / 3)
    line = Graph([(0, 1), (1, 2)])
    assert line.flood == (1.0, (3 + 2 + 3) / 6)


def test_drawn_graph_is_connected_with_four_neighbours_on_average():
    federation = Federation(3, 20, WORKLOADS[0])
    assert len(federation.graph.distances(0)) == 60
    assert [len(graph.links) for graph in federation.area_graphs] == [40, 40, 40]
    assert len(federation.backbone.links) == 12


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_same_seed_gives_the_same_costs(workload: Workload):
    one, other = (Federation(4, 10, workload) for _ in range(2))
    assert astuple(measure_flat(one)) == astuple(measure_flat(other))
    assert astuple(measure_areas(one, 32)) == astuple(measure_areas(other, 32))


@pytest.mark.parametrize("bound", [1, 8, 4_096])
def test_routes_reach_exactly_the_receivers_of_the_flat_federation(bound: int):
    federation = Federation(5, 10, WORKLOADS[1])
    summaries = Areas(federation, bound)
    for publication in federation.publications[:300]:
        route = summaries.route(publication)
        reached = {node for nodes in (route.local, *route.remote.values()) for node in nodes}
        assert reached == federation.receivers(publication)
        assert set(route.remote) <= set(route.areas)
        assert len(route.hops(federation)) == len(reached)
        if bound == 4_096:
            assert set(route.remote) == set(route.areas)


def test_missed_area_is_reported():
    federation = Federation(5, 10, WORKLOADS[1])
    summaries = Areas(federation, 4_096)
    publication = next(each for each in federation.publications if summaries.route(each).remote)
    area = next(iter(summaries.route(publication).remote))
    stranger = Publication(publication.origin, "new/topic")
    federation.subscribers.put("new/topic", [area * federation.size])
    with pytest.raises(AssertionError, match="false negative"):
        summaries.route(stranger)
