"""The forwarding plane of one node: what is done with publications, one by one or many at a time.

`publish` and `take` decide for one publication and return effects. `start` and `pass_on` do the
same for the live agent, from bytes to bytes and without an object per message: what most
publications look like (QoS 0, not retained, no properties) is read and written in place, and
everything else goes the long way. That both ways agree is a test. What is delivered at QoS 1 and 2
is for the disk first, so it is among the news.

A publication that starts here differs from the one before it on the same topic in its number and
payload alone, so its frames are poured into a mould: made once per topic, kept with its plan.

A copy that arrives differs from the one before it on the same topic and link in who sent it and
what it holds, but not in what becomes of it if it is new: that is remembered as a shortcut, found
by the bytes of its names and topic, and forgotten with the plans.
"""

from collections.abc import Iterable, Iterator

from hansa.errors import InvalidFrame
from hansa.protocol.delivery.state import Custody
from hansa.protocol.effects import Deliver, Duplicate, Effect, Ignored, Keep, Send
from hansa.protocol.forwarding.dedup import Windows
from hansa.protocol.forwarding.numbering import Captured, Numbering
from hansa.protocol.forwarding.table import Forwarder, Plan, Table, as_drops, as_sends, shortcut
from hansa.protocol.interest.shared_subscriptions import Audience, Turns
from hansa.protocol.membership.origins import WRONG_SIDE, Origins
from hansa.protocol.model import HOPS_MAX, RECEIVERS_MAX, LinkId, NodeId, Plain, Publication
from hansa.protocol.settings import Outside, ProtocolSettings
from hansa.protocol.wire.codec import (
    GROUP,
    HEAD,
    HOPS_AT,
    ORIGIN,
    PLAIN,
    TOPIC_BYTES_AT,
    cut_names,
    decode_publication,
    encode,
    mould,
)

SHORTCUTS_MAX = 65_536
"""Shortcuts that are remembered over all links; when full, all are learned anew."""

SMALL_BYTES_MAX = 4_096
"""Payloads up to this size need no look at the bound on a frame."""

TOO_LARGE = "larger than a packet may be"
"""Why some of what clients here publish stays at its broker."""

Outgoing = dict[LinkId, list[bytes | bytearray]]
"""Frames per link, in order."""

Deliveries = list[Plain | Publication]
"""What the broker here is to get, in order."""

_HEAD_BYTES = HEAD.size
_TOPIC_BYTES_MAX = 128
_NAMED_MAX = 8
_GROUP_BYTES = GROUP.size


class Plane:
    """Numbers what starts here, passes on what arrives."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        table: Table,
        custody: Custody,
        turns: Turns,
        origins: Origins,
    ) -> None:
        """Read ways from a table; `turns` tells which other nodes want a topic, and chooses who
        serves shared subscriptions; `origins` tells over which links publications of a node may
        come."""
        self.table = table
        self.windows = Windows(settings.window, origins.known, custody.clock)
        self.origins = origins
        self.numbering = Numbering(node)
        self._node = node
        self._custody = custody
        self._turns = turns
        self._forwarder = Forwarder(self.table, self.windows, settings.outside)
        self._outside = settings.outside
        self._packet_bytes_max = settings.packet_bytes_max
        self._life = 0

    # ------------------------------------------------------------ one by one

    def publish(self, event: Captured, incarnation: int) -> list[Effect]:
        """A client here published: number it and send it on its way, if anybody elsewhere cares."""
        if event.topic.startswith("$"):
            return [Ignored("topic for this broker only")]
        if self._is_too_large(event):
            return [Ignored(TOO_LARGE)]
        plan = self.table.plan(event.topic)
        version = self._custody.retained.stamp(event) if event.retain else 0
        if event.qos:
            return self._keep(event, plan, version)
        if not plan.spread and not plan.towards:
            return []
        audience = self._audience_of(event.topic, plan)
        if not audience.shares:
            return self.release(self.numbering.name(event, incarnation, version))
        only, overlaps = self._turns.choose(audience, kept=False)
        counted: list[Effect] = [Ignored("share_overlap")] * overlaps
        if not only:
            return counted
        counted += [Ignored("receivers_max")] * (len(only) - RECEIVERS_MAX)
        named = self.numbering.name(event, incarnation, version, only[:RECEIVERS_MAX])
        return counted + self.release(named)

    def _is_too_large(self, event: Captured) -> bool:
        rest = self._packet_bytes_max - len(event.payload) - len(event.properties)
        return len(event.topic) > rest or len(event.topic.encode()) > rest

    def _audience_of(self, topic: str, plan: Plan) -> Audience:
        if plan.audience is None:
            plan.audience = self._turns.audience(topic)
        return plan.audience

    def _keep(self, event: Captured, plan: Plan, version: int) -> list[Effect]:
        """It goes to the journal first, if anybody is owed it, in reach or not."""
        chosen, overlaps = self._turns.choose(self._audience_of(event.topic, plan), kept=True)
        effects: list[Effect] = [Ignored("share_overlap")] * overlaps
        if chosen:
            effects.append(Keep(self._custody.outbox.capture(event, chosen, version)))
        return effects

    def release(self, publication: Publication) -> list[Effect]:
        """Send a publication that starts here on its way; one that nobody is owed was only kept."""
        if publication.qos and not publication.previous:
            return []
        copies, stuck = self._forwarder.first(publication)
        if publication.qos:
            stuck = []  # its receivers will ask for it
        return [*as_sends(publication, copies, hops=0), *as_drops(publication, stuck)]

    def take(self, link: LinkId, publication: Publication, now: float) -> list[Effect]:
        """A neighbour sent a copy: deliver it, pass it on, or drop it."""
        origin = publication.origin
        if origin == self._node:
            return [Duplicate(origin, publication.number)]
        if not self.origins.accepts(link, origin):
            return [Ignored(WRONG_SIDE)]
        if refusal := self.windows.refusal(publication):
            return [Ignored(refusal)]
        new, deliver, copies, stuck = self._forwarder.next(publication, link)
        effects: list[Effect] = []
        if not new:
            effects.append(self._cut(publication))
        if publication.qos:
            effects += self._take_owed(publication, now)
        elif deliver and self._is_meant(publication):
            effects.append(Deliver(self._custody.retained.judge(publication)))
        effects += as_sends(publication, copies, publication.hops + 1)
        return effects + as_drops(publication, stuck)

    def _take_owed(self, publication: Publication, now: float) -> list[Effect]:
        """What is owed to this node counts only while the map leads to its origin: a copy of a node
        out of reach cannot be told from a forgery, and comes again when its origin is back."""
        if self.origins.is_in_reach(publication.origin):
            return self._custody.inbox.take(publication, now)
        is_owed = any(node == self._node for node, _ in publication.previous)
        return [Ignored("publication of a node out of reach")] if is_owed else []

    def _is_meant(self, publication: Publication) -> bool:
        """Whether a publication of QoS 0 is for this node: it names those that serve shares."""
        meant = publication.previous
        return not meant or any(node == self._node for node, _ in meant)

    def _cut(self, copy: Publication) -> Effect:
        """Say why a copy is not new."""
        if self.windows.admits(copy.origin):
            return Duplicate(copy.origin, copy.number)
        return Ignored("publication of an unknown node")

    # ------------------------------------------------------------ many at a time

    def start(
        self, batch: Iterable[Captured], incarnation: int, outgoing: Outgoing, now: float
    ) -> list[Effect]:
        """Do `publish` for each, add the frames to what goes out; return what is left to tell."""
        self._custody.begin(now)
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
        if item.qos:
            return effects  # nothing leaves before it is kept
        frames = _emit(effects, outgoing)
        if frames is None:
            return [Ignored("no frame can hold it")]
        plain = not (item.retain or item.properties)
        plan = self.table.plan(item.topic)
        is_shared = plan.audience is not None and plan.audience.shares
        if (
            self._outside is not Outside.RANDOM
            and plain
            and not is_shared
            and len(frames) == len(effects)
        ):
            self._make_moulds(plan, len(item.payload), effects, frames)
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

    def pass_on(  # noqa: C901, PLR0915 -- one loop without calls: every publication passes here
        self,
        link: LinkId,
        frames: Iterator[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        news: list[Effect],
        now: float,
    ) -> bytes | None:
        """Do `take` for copies; add what goes out, what is delivered and what is left to tell.
        Stop at a frame that is no publication, or cannot be read, and return it."""
        find, unpack = self.table.shortcuts.setdefault(link, {}).get, HEAD.unpack_from
        by_origin = self.table.by_origin
        here, window, last_origin, last_life, ceiling = self._node, None, None, None, 0
        accepted = self.origins.accepted(link)
        for data in frames:
            if len(data) >= _HEAD_BYTES:
                opening, hops, count, origin, life, number, topic_bytes = unpack(data)
                end = _HEAD_BYTES + topic_bytes
                if count:
                    end += _GROUP_BYTES * count
                key = data[TOPIC_BYTES_AT:end]
                found = find(data[ORIGIN] + key if by_origin else key)
                if (
                    found is not None
                    and opening == PLAIN
                    and hops < HOPS_MAX
                    and end <= len(data) <= SMALL_BYTES_MAX
                    and origin != here
                ):
                    if origin != last_origin or life != last_life:
                        noted = accepted.get(origin)
                        if noted is not None and noted[0] == life:
                            ceiling = noted[1]
                        else:
                            ceiling = self._ceiling(link, origin, life)
                        window = self.windows.get(origin, life, False) if ceiling >= 0 else None
                        last_origin, last_life = origin, life
                    topic, links, onward = found
                    if number > ceiling:  # the long way says why it is refused
                        accepted.pop(origin, None)
                    elif window is not None and (
                        window.add_towards(number, onward) if onward else window.add(number)
                    ):
                        if topic is not None:
                            deliveries.append((topic, data[end:]))
                        if links:
                            frame = bytearray(data)
                            frame[HOPS_AT] = hops + 1
                            if count and not onward:
                                cut_names(frame, count)
                            for each in links:
                                outgoing[each].append(frame)
                        continue
                    elif window is not None and not count:
                        news.append(Duplicate(origin, number))
                        continue
            try:
                effects = self._pass_on_slowly(link, data, now)
            except InvalidFrame:
                return data
            _emit(effects, outgoing)
            for effect in effects:
                if isinstance(effect, Deliver) and not effect.publication.qos:
                    deliveries.append(effect.publication)
                elif not isinstance(effect, Send):
                    news.append(effect)
            last_origin, by_origin = None, self.table.by_origin
            find = self.table.shortcuts.setdefault(link, {}).get
        return None

    def _ceiling(self, link: LinkId, origin: NodeId, life: int) -> int:
        """Return the greatest number that a copy of an origin may have that comes over a link; -1
        if none may come."""
        if not self.origins.accepts(link, origin):
            return -1
        ceiling = self.windows.ceiling(life)
        if self.origins.is_in_reach(origin):  # else anybody could fill this table
            self.origins.accepted(link)[origin] = (life, ceiling)
        return ceiling

    def _pass_on_slowly(self, link: LinkId, data: bytes, now: float) -> list[Effect]:
        publication = decode_publication(data)
        effects = self.take(link, publication, now)
        if not (publication.qos or publication.retain or publication.properties):
            self._learn(link, publication)
        return effects

    def _learn(self, link: LinkId, copy: Publication) -> None:
        """Remember what becomes of copies like this one, if it is always the same."""
        raw = copy.topic.encode()
        if len(raw) > _TOPIC_BYTES_MAX or len(copy.named) > _NAMED_MAX:
            return
        plan = self.table.plan(copy.topic)
        found = shortcut(copy, plan, link, self._outside)
        if found is not None:
            shortcuts = self.table.shortcuts
            if sum(map(len, shortcuts.values())) >= SHORTCUTS_MAX:
                shortcuts.clear()
            origin = copy.origin.to_bytes(8, "big") if self.table.by_origin else b""
            names = [GROUP.pack(group) for group in copy.named]
            # As they are in a frame.
            key = b"".join((origin, len(raw).to_bytes(2, "big"), *names, raw))
            shortcuts.setdefault(link, {})[key] = found


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
