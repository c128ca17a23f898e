"""Bounds for the state that neighbours bring, and for what they may request."""

from hansa.protocol.membership.quotas import ANSWER_BYTES_MAX, ANSWER_BYTES_PER_S, Allowance, Quotas
from hansa.protocol.membership.records import RecordKind
from hansa.protocol.model import NodeId
from hansa.protocol.settings import ProtocolSettings

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def test_allowance_fills_up_again_with_time():
    allowance = Allowance()
    assert allowance.take(ANSWER_BYTES_MAX - 10, 0.0)
    assert not allowance.take(11, 0.0)
    assert allowance.take(10, 0.0)
    assert not allowance.take(ANSWER_BYTES_PER_S + 1, 1.0)
    assert allowance.take(ANSWER_BYTES_PER_S, 1.0)


def test_full_allowance_permits_one_row_of_any_size():
    allowance = Allowance()
    assert allowance.take(3 * ANSWER_BYTES_MAX, 0.0)
    assert not allowance.take(1, 1.0)


def test_nodes_from_disk_count_for_no_neighbour():
    quotas = Quotas(ProtocolSettings(nodes_max=4, nodes_per_neighbour_max=1))
    quotas.add_node(TWO, None)
    quotas.add_node(THREE, None)
    assert quotas.refuses_node(ONE, None) is None
    assert quotas.refuses_node(None, None) is None
    quotas.add_node(NodeId(4), None)
    assert quotas.refuses_node(None, None) == "nodes_max"


def test_longest_linked_neighbour_may_bring_as_many_nodes_as_fit():
    quotas = Quotas(ProtocolSettings(nodes_max=4, nodes_per_neighbour_max=1))
    quotas.add_node(TWO, ONE)
    assert quotas.refuses_node(ONE, TWO) == "nodes_per_neighbour_max"
    assert quotas.refuses_node(ONE, ONE) is None
    quotas.add_node(THREE, ONE)
    quotas.add_node(NodeId(4), ONE)
    assert quotas.refuses_node(ONE, ONE) == "nodes_max"


def test_every_node_may_have_an_equal_part_of_its_neighbours_filters():
    quotas = Quotas(ProtocolSettings(filters_per_neighbour_max=9))
    for node in (ONE, TWO, THREE):
        quotas.add_node(node, ONE)
    quotas.resize(RecordKind.INTEREST, TWO, 8)
    assert quotas.refuses_names(RecordKind.INTEREST, TWO, 1, True) is None
    assert quotas.refuses_names(RecordKind.INTEREST, TWO, 2, True) == "filters_per_neighbour_max"
    quotas.resize(RecordKind.INTEREST, TWO, 9)
    assert quotas.refuses_names(RecordKind.INTEREST, THREE, 3, True) is None
    assert quotas.refuses_names(RecordKind.INTEREST, THREE, 4, True) == "filters_per_neighbour_max"


def test_filters_from_disk_count_for_no_neighbour():
    quotas = Quotas(ProtocolSettings(filters_per_neighbour_max=1))
    quotas.add_node(TWO, None)
    assert quotas.refuses_names(RecordKind.INTEREST, TWO, 5, True) is None


def test_unbounded_neighbour_may_bring_as_many_filters_as_fit():
    quotas = Quotas(ProtocolSettings(filters_max=9, filters_per_neighbour_max=1))
    quotas.add_node(TWO, ONE)
    assert quotas.refuses_names(RecordKind.INTEREST, TWO, 9, False) is None
    assert quotas.refuses_names(RecordKind.INTEREST, TWO, 10, False) == "filters_max"


def test_expired_node_makes_room():
    quotas = Quotas(ProtocolSettings(nodes_per_neighbour_max=1, filters_per_neighbour_max=3))
    quotas.add_node(TWO, ONE)
    quotas.resize(RecordKind.INTEREST, TWO, 3)
    assert quotas.refuses_node(ONE, None) == "nodes_per_neighbour_max"
    assert quotas.refuses_names(RecordKind.INTEREST, TWO, 1, True) == "filters_per_neighbour_max"
    quotas.remove_node(TWO)
    quotas.remove_node(THREE)  # never known
    assert quotas.refuses_node(ONE, None) is None
    assert quotas.names[RecordKind.INTEREST] == 0


def test_claims_have_the_same_bounds_beside_filters():
    quotas = Quotas(ProtocolSettings(filters_max=5, filters_per_neighbour_max=4))
    quotas.add_node(TWO, ONE)
    quotas.resize(RecordKind.INTEREST, TWO, 4)
    assert quotas.refuses_names(RecordKind.CLAIMS, TWO, 4, True) is None
    assert quotas.refuses_names(RecordKind.CLAIMS, TWO, 5, True) == "filters_per_neighbour_max"
    assert quotas.refuses_names(RecordKind.CLAIMS, TWO, 6, True) == "filters_max"
