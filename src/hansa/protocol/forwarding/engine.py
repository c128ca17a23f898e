"""The forwarding engine of one node: handles publications one by one or in batches.

`publish` and `receive_copy` decide for one publication and return effects. `publish_batch` and
`forward_batch` do the same for the live agent, from bytes to bytes and without an object per
message: plain publications (QoS 0, not retained, no properties) are read and written in place, all
others take the slow path. A test checks that both paths agree. Deliveries at QoS 1 and 2 must reach
the disk first, so they are returned as effects.

Two local publications on one topic differ only in sequence number and payload, so their frames are
made from templates, created once per topic and kept with its plan.

All new copies with the same link, target groups and topic are handled alike. The flow cache
remembers how, by the bytes of target groups and topic, and is cleared together with the plans.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from hansa.errors import InvalidFrame
from hansa.protocol.delivery.state import DeliveryState
from hansa.protocol.effects import (
    AppendToJournal,
    Deliver,
    Duplicate,
    Effect,
    Ignored,
    PeerMisbehaved,
    Send,
)
from hansa.protocol.forwarding.dedup import DuplicateFilter, SequenceWindow
from hansa.protocol.forwarding.numbering import LocalPublication, LocalSequencer
from hansa.protocol.forwarding.table import (
    Copies,
    FlowEntry,
    Forwarder,
    ForwardingTable,
    TopicPlan,
    drop_effects,
    make_flow_entry,
    send_effects,
)
from hansa.protocol.interest.shared_subscriptions import ShareSelector, TopicInterest
from hansa.protocol.membership.origins import WRONG_SIDE, Origins
from hansa.protocol.membership.rights import OUTSIDE_CERTIFICATE
from hansa.protocol.model import (
    HOPS_MAX,
    RECEIVERS_MAX,
    GroupId,
    LinkId,
    NodeId,
    PlainMessage,
    Publication,
)
from hansa.protocol.pair_authentication import ALTERED_PUBLICATION, PairAuthenticator
from hansa.protocol.settings import NonMemberForwarding, ProtocolSettings
from hansa.protocol.wire.codec import (
    GROUP_ID_STRUCT,
    HOPS_AT,
    ORIGIN_AT,
    ORIGIN_END,
    PLAIN_FIRST_BYTES,
    PUBLICATION_HEAD_BYTES,
    PUBLICATION_HEADER,
    TOPIC_BYTES_AT,
    decode_publication,
    encode,
    make_frame_template,
    remove_target_groups,
)

FLOW_CACHE_MAX = 65_536
"""Entries of the flow cache over all links; when full, it is cleared."""

SMALL_BYTES_MAX: Final = 4_096
"""Payloads up to this size need no check against the bound of a frame."""

TOO_LARGE = "larger than packet_bytes_max"
MAY_NOT_PUBLISH = "topic outside the certificate of this node"
"""Why a local publication is not forwarded."""

Outgoing = dict[LinkId, list[bytes | bytearray]]
"""Frames per link, in order."""

Deliveries = list[PlainMessage | Publication]
"""Publications for the local broker, in order."""

_Header = tuple[int, int, int, NodeId, int, int, int]
"""The fields of PUBLICATION_HEADER. A compiler computes with annotated integers itself."""

_TOPIC_BYTES_MAX = 128
_TARGET_GROUPS_MAX = 8
_GROUP_BYTES: Final = 8


class ForwardingEngine:
    """Numbers and sends local publications; delivers and forwards received copies."""

    def __init__(
        self,
        node: NodeId,
        settings: ProtocolSettings,
        table: ForwardingTable,
        delivery: DeliveryState,
        share_selector: ShareSelector,
        origins: Origins,
    ) -> None:
        """`share_selector` knows the interested nodes of a topic and selects those that serve
        shared subscriptions; `origins` knows over which links publications of a node may arrive,
        and how they are proven."""
        self.table = table
        self.duplicate_filter = DuplicateFilter(
            settings.dedup_window, origins.known, delivery.clock
        )
        self.origins = origins
        self.sequencer = LocalSequencer(node)
        self._node = node
        self._pair_authenticator = origins.pair_authenticator
        self._delivery = delivery
        self._share_selector = share_selector
        self._forwarder = Forwarder(
            self.table,
            self.duplicate_filter,
            settings.non_member_forwarding,
            lambda: delivery.rights_of(node).may_relay,
        )
        self._non_member_forwarding = settings.non_member_forwarding
        self._packet_bytes_max = settings.packet_bytes_max
        self._incarnation = 0

    def dry_run(
        self, copy: Publication, sender: LinkId | None, is_new: bool
    ) -> tuple[Copies, list[GroupId]]:
        """Return what `Forwarder` would decide for a copy; nothing is recorded."""
        return self._forwarder.dry_run(copy, sender, is_new)

    # ------------------------------------------------------------ one by one

    def publish(self, event: LocalPublication, incarnation: int) -> list[Effect]:
        """A local client published: number it and send it, if another node is interested."""
        if event.topic.startswith("$"):
            return [Ignored("topic for this broker only")]
        if self._is_too_large(event):
            return [Ignored(TOO_LARGE)]
        if not self._delivery.rights_of(self._node).allows_publishing(event.topic):
            return [Ignored(MAY_NOT_PUBLISH)]
        plan = self.table.plan(event.topic)
        version = self._delivery.retained.assign_version(event) if event.retain else 0
        if event.qos:
            return self._assign_position(event, plan, version)
        if not plan.mesh_links and not plan.core_links:
            return []
        interest = self._topic_interest(event.topic, plan)
        if not interest.shares:
            return self.originate(self.sequencer.make_publication(event, incarnation, version))
        receivers, overlaps = self._share_selector.choose_receivers(interest, is_guaranteed=False)
        counted: list[Effect] = [Ignored("share_overlap")] * overlaps
        if not receivers:
            return counted
        counted += [Ignored("receivers_max")] * (len(receivers) - RECEIVERS_MAX)
        publication = self.sequencer.make_publication(
            event, incarnation, version, receivers[:RECEIVERS_MAX]
        )
        return counted + self.originate(publication)

    def _is_too_large(self, event: LocalPublication) -> bool:
        rest = self._packet_bytes_max - len(event.payload) - len(event.properties)
        return len(event.topic) > rest or len(event.topic.encode()) > rest

    def _topic_interest(self, topic: str, plan: TopicPlan) -> TopicInterest:
        if plan.interest is None:
            plan.interest = self._share_selector.topic_interest(topic)
        return plan.interest

    def _assign_position(
        self, event: LocalPublication, plan: TopicPlan, version: int
    ) -> list[Effect]:
        """Give it a position, if it has receivers, reachable or not; the shell appends it to the
        journal. For recorded topics without receivers the driver calls `Node.assign_position`."""
        chosen, overlaps = self._share_selector.choose_receivers(
            self._topic_interest(event.topic, plan), is_guaranteed=True
        )
        effects: list[Effect] = [Ignored("share_overlap")] * overlaps
        if chosen:
            effects.append(
                AppendToJournal(self._delivery.outbox.assign_position(event, chosen, version))
            )
        return effects

    def originate(self, publication: Publication) -> list[Effect]:
        """Send a local publication; without receivers it was only journaled."""
        if publication.qos and not publication.receivers:
            return []
        copies, unroutable = self._forwarder.copies_of_local(publication)
        if publication.qos:
            unroutable = []  # its receivers will request it
            if self._pair_authenticator is not None and copies:
                publication = self._pair_authenticator.sign_publication(publication)
        return [*send_effects(publication, copies, hops=0), *drop_effects(publication, unroutable)]

    def receive_copy(self, link: LinkId, publication: Publication, now: float) -> list[Effect]:
        """A neighbour sent a copy: deliver it, forward it, or drop it."""
        origin = publication.origin
        if origin == self._node:
            return [Duplicate(origin, publication.sequence)]
        if not self.origins.accepts(link, origin):
            return [Ignored(WRONG_SIDE)]
        if not self._delivery.rights_of(origin).allows_publishing(publication.topic):
            return [Ignored(OUTSIDE_CERTIFICATE)]
        if refusal := self.duplicate_filter.number_refusal(publication):
            return [Ignored(refusal)]
        if publication.qos and self._pair_authenticator is not None:
            return self._receive_proven_copy(link, publication, self._pair_authenticator, now)
        return self._process_copy(link, publication, None, now)

    def _receive_proven_copy(
        self, link: LinkId, publication: Publication, authenticator: PairAuthenticator, now: float
    ) -> list[Effect]:
        """Check the proof of a copy. An altered copy is not forwarded and does not make other
        copies duplicates; its origin is asked for the publication. A copy that proves nothing to
        this node, such as one made before it restarted, is forwarded: it may do so to others."""
        refusal = authenticator.publication_refusal(publication)
        if refusal != ALTERED_PUBLICATION:
            return self._process_copy(link, publication, refusal, now)
        self._delivery.inbox.request_after_forgery(publication.origin, now)
        if self.origins.is_linked(link, publication.origin):  # no relay could have altered it
            return [PeerMisbehaved(link, refusal)]
        return [Ignored(refusal)]

    def _process_copy(
        self, link: LinkId, publication: Publication, refusal: str | None, now: float
    ) -> list[Effect]:
        """Forward a copy, and deliver it unless there is a reason not to."""
        new, deliver, copies, unroutable = self._forwarder.copies_of_received(publication, link)
        effects: list[Effect] = []
        if not new:
            effects.append(self._report_known_copy(publication))
        if refusal is not None:
            effects.append(Ignored(refusal))
        elif publication.qos:
            effects += self._accept_guaranteed(publication, now)
        elif deliver and self._is_receiver(publication):
            effects.append(Deliver(self._delivery.retained.resolve_retain_flag(publication)))
        effects += send_effects(publication, copies, publication.hops + 1)
        return effects + drop_effects(publication, unroutable)

    def _accept_guaranteed(self, publication: Publication, now: float) -> list[Effect]:
        """Accept a guaranteed publication for this node only while its origin is reachable: else it
        cannot be distinguished from a forgery. It is sent again when the origin is back."""
        if self.origins.is_reachable(publication.origin):
            if publication.macs:
                publication = replace(publication, macs=b"")
            return self._delivery.inbox.receive_copy(publication, now)
        is_pending = any(node == self._node for node, _ in publication.receivers)
        return [Ignored("publication of an unreachable node")] if is_pending else []

    def _is_receiver(self, publication: Publication) -> bool:
        """Whether a publication of QoS 0 is for this node: it names the nodes that serve shares."""
        receivers = publication.receivers
        return not receivers or any(node == self._node for node, _ in receivers)

    def _report_known_copy(self, copy: Publication) -> Effect:
        """Return the effect that reports a copy that is not new."""
        if self.duplicate_filter.admit_origin(copy.origin):
            return Duplicate(copy.origin, copy.sequence)
        return Ignored("publication of an unknown node")

    # ------------------------------------------------------------ batches

    def publish_batch(
        self, batch: Iterable[LocalPublication], incarnation: int, outgoing: Outgoing, now: float
    ) -> list[Effect]:
        """Do `publish` for each; add the frames to `outgoing`, return all other effects."""
        self._delivery.set_now(now)
        if incarnation != self._incarnation:  # it is part of the templates
            self._incarnation = incarnation
            self.table.clear_plans()
        notifications: list[Effect] = []
        plans, sequencer = self.table.plans, self.sequencer
        for item in batch:
            plan = plans.get(item.topic)
            payload = item.payload
            if (
                plan is None
                or plan.frame_templates is None
                or item.qos
                or item.retain
                or item.properties
                or len(payload) > SMALL_BYTES_MAX
            ):
                notifications += self._publish_slow_path(item, incarnation, outgoing)
            elif plan.frame_templates:
                sequence = sequencer.next_sequence().to_bytes(8, "big")
                for links, before, after in plan.frame_templates:
                    frame = b"".join((before, sequence, after, payload))
                    for link in links:
                        outgoing[link].append(frame)
        return notifications

    def _publish_slow_path(
        self, item: LocalPublication, incarnation: int, outgoing: Outgoing
    ) -> Iterable[Effect]:
        effects = self.publish(item, incarnation)
        if item.qos:
            return effects  # nothing leaves before it is journaled
        frames = _append_frames(effects, outgoing)
        if frames is None:
            return [Ignored("larger than a frame")]
        plain = not (item.retain or item.properties)
        plan = self.table.plan(item.topic)
        is_shared = plan.interest is not None and plan.interest.shares
        if (
            self._non_member_forwarding is not NonMemberForwarding.RANDOM
            and plain
            and not is_shared
            and len(frames) == len(effects)
        ):
            self._make_frame_templates(plan, len(item.payload), effects, frames)
        return [effect for effect in effects if not isinstance(effect, Send)]

    def _make_frame_templates(
        self, plan: TopicPlan, payload_bytes: int, sends: list[Effect], frames: list[bytes]
    ) -> None:
        """Keep the common parts of this topic's frames, each with its links."""
        links: dict[bytes, list[LinkId]] = {}
        for send, frame in zip(sends, frames, strict=True):
            assert isinstance(send, Send)
            links.setdefault(frame, []).append(send.link)
        plan.frame_templates = tuple(
            (tuple(to), *make_frame_template(frame, payload_bytes)) for frame, to in links.items()
        )

    def forward_batch(  # noqa: C901, PLR0915 -- one loop without calls: every publication passes here
        self,
        link: LinkId,
        frames: Iterator[bytes],
        outgoing: Outgoing,
        deliveries: Deliveries,
        notifications: list[Effect],
        now: float,
    ) -> bytes | None:
        """Do `receive_copy` for each; add frames, deliveries and other effects to the lists. Stop
        at a frame that is not a publication, or is invalid, and return it."""
        flows = self.table.flow_cache.setdefault(link, {})
        by_origin = self.table.depends_on_origin
        own_node, last_origin, last_epoch, sequence_max = self._node, -1, -1, 0
        window: SequenceWindow | None = None
        bounds = self.origins.sequence_bounds(link)
        for data in frames:
            if len(data) >= PUBLICATION_HEAD_BYTES:
                header: _Header = PUBLICATION_HEADER.unpack_from(data)
                opening, hops, count, origin, epoch, sequence, topic_bytes = header
                end = PUBLICATION_HEAD_BYTES + topic_bytes
                if count:
                    end += _GROUP_BYTES * count
                key = data[TOPIC_BYTES_AT:end]
                flow = flows.get(data[ORIGIN_AT:ORIGIN_END] + key if by_origin else key)
                if (
                    flow is not None
                    and opening == PLAIN_FIRST_BYTES
                    and hops < HOPS_MAX
                    and end <= len(data) <= SMALL_BYTES_MAX
                    and origin != own_node
                ):
                    if origin != last_origin or epoch != last_epoch:
                        known = bounds.get(origin)
                        if known is not None and known[0] == epoch:
                            sequence_max = known[1]
                        else:
                            sequence_max = self._sequence_max(link, origin, epoch)
                        window = (
                            self.duplicate_filter.window_for(origin, epoch, False)
                            if sequence_max >= 0
                            else None
                        )
                        last_origin, last_epoch = origin, epoch
                    topic, links, target_groups = flow
                    if sequence > sequence_max:  # the slow path reports why it is refused
                        bounds.pop(origin, None)
                    elif window is not None and (
                        window.add_with_groups(sequence, target_groups)
                        if target_groups
                        else window.add(sequence)
                    ):
                        if topic is not None:
                            deliveries.append((topic, data[end:]))
                        if links:
                            frame = bytearray(data)
                            frame[HOPS_AT] = hops + 1
                            if count and not target_groups:
                                remove_target_groups(frame, count)
                            for each in links:
                                outgoing[each].append(frame)
                        continue
                    elif window is not None and not count:
                        notifications.append(Duplicate(origin, sequence))
                        continue
            try:
                effects = self._forward_slow_path(link, data, now)
            except InvalidFrame:
                return data
            _append_frames(effects, outgoing)
            for effect in effects:
                if isinstance(effect, Deliver) and not effect.publication.qos:
                    deliveries.append(effect.publication)
                elif not isinstance(effect, Send):
                    notifications.append(effect)
            last_origin, by_origin = -1, self.table.depends_on_origin
            flows = self.table.flow_cache.setdefault(link, {})
        return None

    def _sequence_max(self, link: LinkId, origin: NodeId, epoch: int) -> int:
        """Return the greatest sequence number that a copy of an origin may have on a link; -1 if
        none is accepted."""
        if not self.origins.accepts(link, origin):
            return -1
        sequence_max = self.duplicate_filter.sequence_max(epoch)
        # else a peer could fill this table with invented origins
        if self.origins.is_reachable(origin):
            self.origins.sequence_bounds(link)[origin] = (epoch, sequence_max)
        return sequence_max

    def _forward_slow_path(self, link: LinkId, data: bytes, now: float) -> list[Effect]:
        publication = decode_publication(data)
        effects = self.receive_copy(link, publication, now)
        rights = self._delivery.rights_of(publication.origin)
        is_plain = not (publication.qos or publication.retain or publication.properties)
        if is_plain and rights.allows_publishing(publication.topic):
            self._cache_flow(link, publication)
        return effects

    def _cache_flow(self, link: LinkId, copy: Publication) -> None:
        """Remember how copies like this one are handled, if all of them are handled alike."""
        raw = copy.topic.encode()
        if len(raw) > _TOPIC_BYTES_MAX or len(copy.target_groups) > _TARGET_GROUPS_MAX:
            return
        plan = self.table.plan(copy.topic)
        flow: FlowEntry | None
        if self._delivery.rights_of(self._node).may_relay:
            flow = make_flow_entry(copy, plan, link, self._non_member_forwarding)
        else:
            flow = (copy.topic if plan.deliver_locally else None, (), ())
        if flow is not None:
            flows = self.table.flow_cache
            if sum(map(len, flows.values())) >= FLOW_CACHE_MAX:
                flows.clear()
            origin = copy.origin.to_bytes(8, "big") if self.table.depends_on_origin else b""
            names = [GROUP_ID_STRUCT.pack(group) for group in copy.target_groups]
            # Encoded as in a frame.
            key = b"".join((origin, len(raw).to_bytes(2, "big"), *names, raw))
            flows.setdefault(link, {})[key] = flow


def _append_frames(effects: list[Effect], outgoing: Outgoing) -> list[bytes] | None:
    """Add the frames of these effects to `outgoing` and return them; None if no frame can hold the
    publication."""
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
