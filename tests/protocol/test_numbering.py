"""The names of publications that start here."""

from hansa.protocol.events import Published
from hansa.protocol.numbering import Numbering
from hansa.protocol.vocabulary import NAMED_MAX, GroupId, NodeId, Publication

NODE = NodeId(7)
G, H = GroupId(100), GroupId(200)


def numbering() -> Numbering:
    return Numbering(NODE, epoch=3, next_seq=50)


def test_at_qos_0_the_incarnation_is_the_life_and_numbers_count_from_one():
    made = numbering()
    names = [made.name(Published("t", b""), 9, (G,)) for _ in range(3)]
    assert [(p.origin, p.life, p.number) for p in names] == [(7, 9, 1), (7, 9, 2), (7, 9, 3)]


def test_above_qos_0_the_epoch_is_the_life_and_numbers_go_on_where_the_journal_ends():
    made = numbering()
    names = [made.name(Published("t", b"", qos), 9, (G,)) for qos in (1, 2)]
    assert [(p.origin, p.life, p.number) for p in names] == [(7, 3, 50), (7, 3, 51)]


def test_the_two_families_do_not_take_numbers_from_each_other():
    made = numbering()
    names = [made.name(Published("t", b"", qos), 9, (G,)) for qos in (0, 1, 0, 2, 0)]
    assert [p.number for p in names] == [1, 50, 2, 51, 3]


def test_a_journalled_publication_tells_each_groups_previous_one():
    made = numbering()
    names = [made.name(Published("t", b"", 1), 9, groups) for groups in ((G,), (H,), (G, H), (G,))]
    assert [p.previous for p in names] == [
        ((G, 0),),
        ((H, 0),),
        ((G, 50), (H, 51)),
        ((G, 52),),
    ]


def test_the_position_is_where_the_next_journalled_publication_will_stand():
    made = numbering()
    made.name(Published("t", b"", 0), 9, (G,))
    made.name(Published("t", b"", 1), 9, (G,))
    assert made.position == (3, 51)


def test_all_that_the_client_said_is_carried():
    event = Published("a/b", b"21.5", qos=1, retain=True, properties=b"\x01\x02")
    assert numbering().name(event, 9, (G,)) == Publication(
        origin=NODE,
        life=3,
        number=50,
        qos=1,
        topic="a/b",
        payload=b"21.5",
        retain=True,
        hops=0,
        named=(),
        previous=((G, 0),),
        properties=b"\x01\x02",
    )


def test_previous_is_given_for_as_many_groups_as_a_header_holds():
    numbering = Numbering(NodeId(7), epoch=1, next_seq=1)
    groups = tuple(GroupId(number) for number in range(NAMED_MAX + 1))
    publication = numbering.name(Published("t", b"x", qos=1), 1, groups)
    assert publication.previous == tuple((group, 0) for group in groups[:NAMED_MAX])
