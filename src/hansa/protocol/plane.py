"""The forwarding plane of one node: what is done with publications, one by one or many at a time.

`publish` and `take` decide for one publication and return effects. `start` and `pass_on` do the
same for the live agent, from bytes to bytes and without an object per message: what most
publications look like (QoS 0, not retained, no properties, no group named) is read and written in
place, and everything else goes the long way. That both ways agree is a test.

A publication that starts here differs from the one before it on the same topic in its number and
payload alone, so its frames are poured into a mould: made once per topic, kept with its plan.
"""

from collections.abc import Iterable
from struct import error as StructError

from hansa.protocol.effects import Deliver, Duplicate, Effect, Ignored, Send
from hansa.protocol.forwarding import Forwarder, Plan, Table, Windows, as_drops, as_sends
from hansa.protocol.numbering import Captured, Numbering
from hansa.protocol.settings import Outside, ProtocolSettings
from hansa.protocol.topics import FilterTrie
from hansa.protocol.vocabulary import HOPS_MAX, LinkId, NodeId, Publication
from hansa.protocol.wire import (
    GROUP,
    HEAD,
    PLAIN,
    decode_publication,
    encode,
    mould,
    relay,
    unnamed,
)

TOPICS_MAX = 65_536
"""Topics of other nodes whose bytes are remembered; when full, all are learned anew."""

SMALL_BYTES_MAX = 4_096
"""Payloads up to this size need no look at the bound on a frame."""

Outgoing = dict[LinkId, list[bytes]]
"""Frames per link, in order."""

_HEAD_BYTES = HEAD.size
_TOPIC_BYTES_MAX = 128


class Plane:
    """Numbers what starts here, passes on what arrives."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        wanted: FilterTrie[int],
        numbering: Numbering,
    ) -> None:
        """Start with an empty table; `wanted` are the filters of this node's own clients."""
        self.table = Table(wanted, settings.plans_max)
        self.windows = Windows(settings.window, settings.nodes_max)
        self.numbering = numbering
        self._node = node
        self._forwarder = Forwarder(self.table, self.windows, settings.outside)
        self._constant = settings.outside is not Outside.RANDOM
        self._life = 0
        self._topics: dict[bytes, str] = {}

    # ------------------------------------------------------------ one by one

    def publish(self, event: Captured, incarnation: int) -> list[Effect]:
        """A client here published: number it and send it on its way, if anybody elsewhere cares."""
        if event.topic.startswith("$"):
            return [Ignored("topic for this broker only")]
        plan = self.table.plan(event.topic)
        if not plan.spread and not plan.towards:
            return []
        publication = self.numbering.name(event, incarnation, plan.groups)
        copies, stuck = self._forwarder.first(publication)
        return [*as_sends(publication, copies, hops=0), *as_drops(publication, stuck)]

    def take(self, link: LinkId, publication: Publication) -> list[Effect]:
        """A neighbour sent a copy: deliver it, pass it on, or drop it."""
        if publication.origin == self._node:
            return [Duplicate(publication.origin, publication.number)]
        new, deliver, copies, stuck = self._forwarder.next(publication, link)
        effects: list[Effect] = []
        if not new:
            effects.append(Duplicate(publication.origin, publication.number))
        if deliver:
            effects.append(Deliver(publication))
        effects += as_sends(publication, copies, publication.hops + 1)
        return effects + as_drops(publication, stuck)

    # ------------------------------------------------------------ many at a time

    def start(
        self, batch: Iterable[Captured], incarnation: int, outgoing: Outgoing
    ) -> list[Effect]:
        """Do `publish` for each, add the frames to what goes out; return what is left to tell."""
        if incarnation != self._life:  # it is part of the moulds
            self._life = incarnation
            self.table.forget_plans()
        news: list[Effect] = []
        plans, next_number = self.table.plans, self.numbering.next_number
        for item in batch:
            plan = plans.get(item.topic)
            payload = item.payload
            if (
                plan is None
                or plan.moulds is None
                or item.qos
                or item.retain
                or item.properties
                or len(payload) > SMALL_BYTES_MAX
            ):
                news += self._start_slowly(item, incarnation, outgoing)
            elif plan.moulds:
                number = next_number().to_bytes(8, "big")
                for links, before, after in plan.moulds:
                    frame = b"".join((before, number, after, payload))
                    for link in links:
                        outgoing[link].append(frame)
        return news

    def _start_slowly(
        self, item: Captured, incarnation: int, outgoing: Outgoing
    ) -> Iterable[Effect]:
        effects = self.publish(item, incarnation)
        frames = _emit(effects, outgoing)
        if frames is None:
            return [Ignored("no frame can hold it")]
        plain = not (item.qos or item.retain or item.properties)
        if self._constant and plain and len(frames) == len(effects):
            self._make_moulds(self.table.plan(item.topic), len(item.payload), effects, frames)
        return [effect for effect in effects if not isinstance(effect, Send)]

    def _make_moulds(
        self, plan: Plan, payload_bytes: int, sends: list[Effect], frames: list[bytes]
    ) -> None:
        """Keep what the frames of this topic have in common, each with the links it goes to."""
        links: dict[bytes, list[LinkId]] = {}
        for send, frame in zip(sends, frames, strict=True):
            assert isinstance(send, Send)
            links.setdefault(frame, []).append(send.link)
        plan.moulds = tuple(
            (tuple(to), *mould(frame, payload_bytes)) for frame, to in links.items()
        )

    def pass_on(
        self, link: LinkId, data: bytes, outgoing: Outgoing, deliveries: list[Publication]
    ) -> list[Effect]:
        """Do `take` for the bytes of a copy, add what goes out and what is delivered; return the
        rest. Raise InvalidFrame if they are no publication."""
        try:
            opening, hops, count, origin, life, number, topic_bytes = HEAD.unpack_from(data)
        except StructError:
            return self._pass_on_slowly(link, data, outgoing, deliveries)  # says what is wrong
        start = _HEAD_BYTES + GROUP.size * count
        topic_end = start + topic_bytes
        topic = self._topics.get(data[start:topic_end])
        if (
            topic is None
            or opening != PLAIN
            or hops >= HOPS_MAX
            or not topic_end <= len(data) <= SMALL_BYTES_MAX
            or origin == self._node
        ):
            return self._pass_on_slowly(link, data, outgoing, deliveries)
        plan = self.table.plans.get(topic) or self.table.plan(topic)
        if count and plan.towards:  # it may have to go on towards a core
            named = GROUP.iter_unpack(data[_HEAD_BYTES:start])
            groups = tuple([group for (group,) in named])
            payload = data[topic_end:]
            copy = Publication(origin, life, number, 0, topic, payload, False, hops, groups)
            return self._spread(link, copy, data, outgoing, deliveries)
        window = self.windows.get(origin, life, False)
        if window is None or not window.add(number):
            return [Duplicate(origin, number)]
        if plan.deliver:
            payload = data[topic_end:]
            deliveries.append(Publication(origin, life, number, 0, topic, payload, False, hops))
        relayed = b""
        for each in plan.spread:
            if each != link:
                # If groups are named, it has met the mesh of all of them.
                relayed = relayed or relay(unnamed(data, count) if count else data, hops + 1)
                outgoing[each].append(relayed)
        return []

    def _spread(
        self,
        link: LinkId,
        copy: Publication,
        data: bytes,
        outgoing: Outgoing,
        deliveries: list[Publication],
    ) -> list[Effect]:
        """Do `take` for a copy that is already read; most go on with the names that they have."""
        new, deliver, copies, stuck = self._forwarder.next(copy, link)
        if deliver:
            deliveries.append(copy)
        same = b""
        for each, groups in copies:
            if groups == copy.named:
                same = same or relay(data, copy.hops + 1)
                outgoing[each].append(same)
            else:
                outgoing[each].append(encode(copy.onward(copy.hops + 1, groups)))
        news: list[Effect] = [] if new else [Duplicate(copy.origin, copy.number)]
        return news + as_drops(copy, stuck) if stuck else news

    def _pass_on_slowly(
        self, link: LinkId, data: bytes, outgoing: Outgoing, deliveries: list[Publication]
    ) -> list[Effect]:
        publication = decode_publication(data)
        self._remember(publication.topic)
        effects = self.take(link, publication)
        _emit(effects, outgoing)
        deliveries += [effect.publication for effect in effects if isinstance(effect, Deliver)]
        return [effect for effect in effects if not isinstance(effect, Send | Deliver)]

    def _remember(self, topic: str) -> None:
        """Remember that these bytes are a good topic, and which."""
        raw = topic.encode()
        if len(raw) <= _TOPIC_BYTES_MAX:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            self._topics[raw] = topic


def _emit(effects: list[Effect], outgoing: Outgoing) -> list[bytes] | None:
    """Add the frames of these effects to what goes out, and return them; None if there are none
    that could hold the publication."""
    frames: list[bytes] = []
    last: object = None
    for effect in effects:
        if isinstance(effect, Send):
            if effect.frame is not last:  # copies share frames, and follow each other
                try:
                    data = encode(effect.frame)
                except ValueError:
                    return None
                last = effect.frame
            outgoing[effect.link].append(data)
            frames.append(data)
    return frames
