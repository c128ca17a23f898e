"""Sequence numbers of local publications of QoS 0."""

from hansa.protocol.events import ClientPublished
from hansa.protocol.forwarding.numbering import LocalSequencer
from hansa.protocol.model import NodeId, Publication

NODE = NodeId(7)


def test_epoch_is_the_incarnation_and_numbers_count_from_one():
    made = LocalSequencer(NODE)
    names = [made.make_publication(ClientPublished("t", b""), 9) for _ in range(3)]
    assert [(p.origin, p.epoch, p.sequence) for p in names] == [(7, 9, 1), (7, 9, 2), (7, 9, 3)]


def test_publication_carries_all_fields_of_the_client():
    event = ClientPublished("a/b", b"21.5", retain=True, properties=b"\x01\x02")
    assert LocalSequencer(NODE).make_publication(event, 9) == Publication(
        origin=NODE,
        epoch=9,
        sequence=1,
        qos=0,
        topic="a/b",
        payload=b"21.5",
        retain=True,
        hops=0,
        target_groups=(),
        receivers=(),
        properties=b"\x01\x02",
    )
