"""Guaranteed delivery at one node; the rules are tested in test_spec_delivery.py."""

from tests.protocol.contexts import context, records

from hansa.protocol.delivery.inbox import memory_bytes
from hansa.protocol.delivery.state import DeliveryState, RestoredState
from hansa.protocol.model import NodeId, Publication
from hansa.protocol.settings import ProtocolSettings

ME, OTHER, THIRD = NodeId(1), NodeId(2), NodeId(3)


def delivery_state() -> DeliveryState:
    return DeliveryState(ME, ProtocolSettings(), RestoredState(), context(records(OTHER, THIRD)))


def test_without_pending_publications_there_is_no_deadline():
    made = delivery_state()
    made.on_node_reachable(OTHER, 0.0)
    assert made.handle_timer(100.0) == []
    assert made.next_deadline() is None


def test_sizes_are_those_of_the_largest_stream_and_bytes_those_of_all():
    made = delivery_state()
    for origin, count in ((OTHER, 1), (THIRD, 3)):
        for number in range(1, count + 1):
            made.inbox.receive_copy(_publication(origin, number, number - 1), 0.0)
        made.inbox.receive_copy(_publication(origin, 9, 8), 0.0)
    sizes = made.sizes()
    each = memory_bytes(_publication(OTHER, 1, 0))
    assert (sizes["streams"], sizes["uncommitted"], sizes["uncommitted_bytes"]) == (2, 3, 4 * each)
    assert (sizes["out_of_order"], sizes["out_of_order_bytes"]) == (1, 2 * each)


def _publication(origin: NodeId, number: int, previous: int) -> Publication:
    return Publication(origin, 1, number, 1, "t", b"xx", receivers=((ME, previous),))
