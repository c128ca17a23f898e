"""The names of publications of QoS 0 that start here."""

from hansa.protocol.events import Published
from hansa.protocol.forwarding.numbering import Numbering
from hansa.protocol.model import NodeId, Publication

NODE = NodeId(7)


def test_the_incarnation_is_the_life_and_numbers_count_from_one():
    made = Numbering(NODE)
    names = [made.name(Published("t", b""), 9) for _ in range(3)]
    assert [(p.origin, p.life, p.number) for p in names] == [(7, 9, 1), (7, 9, 2), (7, 9, 3)]


def test_all_that_the_client_said_is_carried():
    event = Published("a/b", b"21.5", retain=True, properties=b"\x01\x02")
    assert Numbering(NODE).name(event, 9) == Publication(
        origin=NODE,
        life=9,
        number=1,
        qos=0,
        topic="a/b",
        payload=b"21.5",
        retain=True,
        hops=0,
        named=(),
        previous=(),
        properties=b"\x01\x02",
    )
