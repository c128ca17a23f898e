"""Three drivers in a row, joined by real TCP: the sampler records each step.

The first publishes, the second forwards and delivers, the third delivers.
"""

import asyncio
from collections import Counter
from itertools import count
from typing import Any

import pytest
from tests.agent.test_driver import Side
from tests.agent.waiting import until

from hansa.agent.links.link import Address
from hansa.agent.telemetry.sampler import Sampler
from hansa.journal.records import InboxRecord
from hansa.protocol.effects import Deliver, Dropped, Duplicate, Effect, Gap, NeighbourUp
from hansa.protocol.events import ClientPublished, InterestChanged
from hansa.protocol.forwarding.engine import Deliveries, Outgoing
from hansa.protocol.model import LinkId, NodeId, Publication
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.codec import encode
from hansa.telemetry import schema
from hansa.telemetry.event_mapper import is_sampled


class SampledSide(Side):
    """A side whose sampler writes to a list, with a counting clock."""

    def __init__(self, number: int, sample: int) -> None:
        super().__init__(number, ProtocolSettings())
        self.records: list[Any] = []
        self.node = self.driver.node.id
        clock = count(1).__next__
        self.driver.sampler = Sampler(self.records.append, (self.node, 1), sample, clock)

    @property
    def is_settled(self) -> bool:
        """Whether all three know each other and all interest is installed."""
        view = self.driver.node.status()
        return len(view.reachable) == 3 and view.installed and self.broker.filters == {"a/#"}

    def of(self, kind: type) -> list[tuple[int, str, int | None]]:
        """Sequence, topic and hops of the records of one type."""
        found: list[Any] = [each for each in self.records if isinstance(each, kind)]
        return [(each.sequence, each.topic, getattr(each, "hops", None)) for each in found]


def row_of_three(sample: int, payloads: int) -> list[SampledSide]:
    """Publish `a/b`, to which the second and third subscribe, and `c` without subscribers."""

    async def run() -> list[SampledSide]:
        sides = [SampledSide(number, sample) for number in (1, 2, 3)]
        for side in sides:
            side.driver.feed(InterestChanged())
        for near, far in zip(sides, sides[1:], strict=False):
            address = await near.links.listen(Address("127.0.0.1", 0))
            far.links.dialler.dial(address, lambda _, reason: None)
        for side in sides[1:]:
            side.driver.feed(InterestChanged(("a/#",)))
        await until(lambda: all(side.is_settled for side in sides), "all know what all want")
        batch = [ClientPublished("a/b", b"%d" % each) for each in range(payloads)]
        for half in (batch[: payloads // 2], batch[payloads // 2 :]):
            sides[0].driver.capture_qos0([*half, ClientPublished("c", b"x")])
        await until(lambda: len(sides[2].broker.injected) == payloads, "delivered")
        await asyncio.gather(*(side.stop() for side in sides))
        return sides

    return asyncio.run(run())


@pytest.mark.parametrize("sample", [1, 3])
def test_every_sampled_publication_is_recorded_at_every_step(sample):
    first, second, third = row_of_three(sample, payloads=20)
    names = [number for number in range(1, 21) if is_sampled(number, sample)]
    assert first.of(schema.Captured) == [(number, "a/b", None) for number in names]
    assert first.of(schema.CopySent) == [(number, "a/b", 1) for number in names]
    assert second.of(schema.CopyReceived) == first.of(schema.CopySent)
    assert second.of(schema.Delivered) == first.of(schema.CopySent)
    assert second.of(schema.CopySent) == [(number, "a/b", 2) for number in names]
    assert third.of(schema.CopyReceived) == third.of(schema.Delivered) == second.of(schema.CopySent)


def test_records_have_all_table_columns():
    first, second, _ = row_of_three(1, payloads=1)
    (captured,) = [each for each in first.records if isinstance(each, schema.Captured)]
    (received,) = [each for each in second.records if isinstance(each, schema.CopyReceived)]
    (sent,) = [each for each in first.records if isinstance(each, schema.CopySent)]
    name = (first.node, 1, 1, 0, "a/b", 1)
    assert captured == schema.Captured(captured.time_ns, *name)
    assert sent == schema.CopySent(sent.time_ns, *name, sent.frame_bytes, 1, second.node)
    assert received == schema.CopyReceived(received.time_ns, *name, sent.frame_bytes, 1, first.node)


def test_fate_of_each_copy_is_read_from_the_lists_of_the_engine():
    records_seen: list[schema.AnyRecord] = []
    sampler = Sampler(records_seen.append, (1, 1), 1, lambda: 5)
    link, other = LinkId(7), LinkId(8)
    sampler.on_effect(0, NeighbourUp(NodeId(2), link))
    records_seen.clear()
    copies = [Publication(NodeId(9), 4, number, 0, "a/b", b"21.5") for number in (1, 2, 3)]
    retained = Publication(NodeId(9), 4, 4, 0, "a/b", b"21.5", retain=True)
    guaranteed = Publication(NodeId(9), 4, 1, 1, "a/b", b"21.5")
    outgoing: Outgoing = {link: [b"from before"]}
    deliveries: Deliveries = [("from", b"before")]
    notifications: list[Effect] = []
    frames = [encode(each) for each in (*copies, retained, guaranteed)]
    watched = sampler.watch_frames(link, [b"", *frames], outgoing, deliveries, notifications)
    assert next(watched) == b""
    assert next(watched) == frames[0]
    deliveries.append(("a/b", b"21.5"))
    outgoing[other] = [encode(copies[0].forwarded_copy(1, ()))]
    assert next(watched) == frames[1]
    notifications.append(Duplicate(NodeId(9), 2))
    assert next(watched) == frames[2]
    notifications.append(Dropped(NodeId(9), 3, "hop limit"))
    assert list(watched) == frames[3:]
    names = [(9, 4, number, 0, "a/b", 4) for number in (1, 2, 3, 4)]
    size = len(frames[0])
    assert records_seen == [
        schema.CopyReceived(5, *names[0], size, 1, 2),
        schema.Delivered(5, *names[0], 1),
        schema.CopySent(5, *names[0], size, 2, None),
        schema.CopyReceived(5, *names[1], size, 1, 2),
        schema.Duplicate(5, 9, 4, 2, 0, 2),
        schema.CopyReceived(5, *names[2], size, 1, 2),
        schema.Dropped(5, 9, 4, 3, 0, "hop limit"),
        schema.CopyReceived(5, *names[3], size, 1, 2),
        schema.CopyReceived(5, 9, 4, 1, 1, "a/b", 4, size, 1, 2),
    ]


def test_qos_1_and_2_is_recorded_as_delivered_with_hops_after_broker_ack():
    records_seen: list[schema.AnyRecord] = []
    sampler = Sampler(records_seen.append, (1, 1), 1, lambda: 5)
    link, other = LinkId(7), LinkId(8)
    sampler.on_effect(0, NeighbourUp(NodeId(2), link))
    records_seen.clear()
    copy = Publication(NodeId(9), 4, 7, 1, "a/b", b"21.5", hops=2)
    unreadable = encode(copy)[:-6]
    outgoing: Outgoing = {}
    notifications: list[Effect] = []
    watched = sampler.watch_frames(link, [encode(copy), unreadable], outgoing, [], notifications)
    next(watched)
    notifications.append(Deliver(copy))
    outgoing[other] = [encode(copy.forwarded_copy(3, ()))]
    assert list(watched) == [unreadable]
    sampler.on_batch_notifications(notifications)
    sampler.on_injected(InboxRecord(1, 9, 4, 7, 1, "a/b", b"21.5"))
    name, size = (9, 4, 7, 1, "a/b", 4), len(encode(copy))
    assert records_seen == [
        schema.CopyReceived(5, *name, size, 3, 2),
        schema.CopySent(5, *name, size, 4, None),
        schema.Delivered(5, *name, 3),
    ]


def test_frames_of_unknown_nodes_are_left_to_the_node():
    records_seen: list[schema.AnyRecord] = []
    sampler = Sampler(records_seen.append, (1, 1), 1, lambda: 5)
    frame = encode(Publication(NodeId(9), 4, 1, 0, "a/b", b"21.5"))
    assert list(sampler.watch_frames(LinkId(7), [frame], {}, [], [])) == [frame]
    assert records_seen == []


def test_frames_other_than_publications_are_recorded_without_sampling():
    records_seen: list[schema.AnyRecord] = []
    sampler = Sampler(records_seen.append, (1, 1), 0, lambda: 5)
    sampler.on_batch_notifications([Duplicate(NodeId(9), 2), Gap(NodeId(9), 4, 1, 2, "new epoch")])
    assert records_seen == [schema.Gap(5, 9, 4, 1, 2, "new epoch")]


def test_sample_none_records_links_and_control_but_no_publications():
    kinds = Counter(type(each) for side in row_of_three(0, 5) for each in side.records)
    assert not [kind for kind in kinds if kind in schema.SAMPLED_KINDS]
    assert {
        schema.LinkUp,
        schema.ControlFrameSent,
        schema.InterestAdded,
        schema.NodeReachable,
    } <= set(kinds)


def test_injected_publication_is_recorded_with_remembered_hops():
    records_seen: list[schema.AnyRecord] = []
    sampler = Sampler(records_seen.append, (1, 1), 1, lambda: 5)
    sampler.on_injected(InboxRecord(1, 9, 4, 7, 1, "a/b", b"21.5"))
    assert records_seen == [schema.Delivered(5, 9, 4, 7, 1, "a/b", 4, None)]
