"""What a compromised member does to others, by name (docs/threat-model.md).

Each attack returns frames for all neighbours, or changes how the member forwards. A frame names
nodes, groups, epochs and topics that exist in the run. `RANDOM_ATTACKS` are drawn for random runs.
"""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from hansa.protocol.clock import AHEAD_MAX_MS, NUMBERS_PER_MS
from hansa.protocol.membership.records import (
    ClaimsRecord,
    InterestRecord,
    NodeRecord,
    Record,
    RecordKind,
)
from hansa.protocol.model import KEY_BYTES, MAC_BYTES, NodeId, Publication, group_id, node_id
from hansa.protocol.retained.clock import VERSIONS_PER_MS
from hansa.protocol.wire.codec import encode
from hansa.protocol.wire.frames import (
    AnyFrame,
    CoreAnnouncement,
    Goodbye,
    InterestAck,
    InterestAcks,
    PendingNotice,
    Receipt,
    RepairResponse,
    RetainedValuesFrame,
    RetainedVersions,
    SealedUnicast,
    Unicast,
    Update,
)
from hansa.simulator.actions import PlayAttack, ScheduledAction
from hansa.simulator.byzantine.attacker import Attacker
from hansa.simulator.byzantine.random_frames import random_frames
from hansa.simulator.world.world import World

Frames = Iterable[AnyFrame | Publication]
Attack = Callable[[Attacker], Frames]

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
LARGE = 1 << 62
MADE_UP_NODES = 40
FLOOD_RECORDS = 40
RANDOM_FRAMES = 30
TAG_BYTES = 16
"""Bytes of the tag of a sealed frame."""

# ---------------------------------------------------------------- records


def forge_node_records(attacker: Attacker) -> Frames:
    """Newer node records of others, without their links."""
    for node in attacker.victims():
        record = attacker.corpus.node_record(node)
        assert record is not None
        yield _update(attacker, replace(record, version=record.version + 5, links=()))
        restarted = replace(record, incarnation=record.incarnation + MINUTE_MS, version=1, links=())
        yield _update(attacker, restarted)


def forge_interest(attacker: Attacker) -> Frames:
    """Newer interest records of others, without filters."""
    return _forge_sets(attacker, InterestRecord, RecordKind.INTEREST, ())


def forge_claims(attacker: Attacker) -> Frames:
    """Newer claims of others: to all groups, or to none."""
    groups = tuple(attacker.corpus.names)
    yield from _forge_sets(attacker, ClaimsRecord, RecordKind.CLAIMS, groups)
    yield from _forge_sets(attacker, ClaimsRecord, RecordKind.CLAIMS, ())


def _forge_sets(
    attacker: Attacker,
    make: type[InterestRecord] | type[ClaimsRecord],
    kind: RecordKind,
    names: tuple[str, ...],
) -> Iterator[Update]:
    for node in attacker.victims():
        owner = attacker.corpus.node_record(node)
        known = attacker.corpus.newest.get((kind, node)) or owner
        assert known is not None and owner is not None
        incarnation = max(known.incarnation, owner.incarnation)
        for stamp in ((incarnation, known.version + 5), (incarnation + 1, 1)):
            yield _update(attacker, make(node, *stamp, stamp[1], names))


def replay_records(attacker: Attacker) -> Frames:
    """Old records of all nodes, oldest last."""
    for record in reversed(attacker.corpus.records):
        yield Update((record,))


def future_records(attacker: Attacker) -> Frames:
    """Records beyond the clock: of others and its own."""
    for node in attacker.victims():
        record = attacker.corpus.node_record(node)
        assert record is not None
        for incarnation in ((1 << 64) - 1, attacker.wall_ms + 2 * AHEAD_MAX_MS):
            yield _update(attacker, replace(record, incarnation=incarnation, links=()))
            yield CoreAnnouncement(node, incarnation, 1, 0)
        yield _update(attacker, replace(record, version=LARGE))
        yield CoreAnnouncement(node, record.incarnation, LARGE, 0)
    yield _update(attacker, InterestRecord(attacker.id, (1 << 64) - 1, 1, 1, ("#",)))


def rival_records(attacker: Attacker) -> Frames:
    """Records of each neighbour itself, as if a copy of it ran."""
    for end in attacker.ends():
        node = attacker.neighbour(end)
        record = attacker.corpus.node_record(node)
        if record is None:
            continue
        for started in (0, record.incarnation + 1):
            rival = replace(
                record, incarnation=record.incarnation + MINUTE_MS, first_incarnation=started
            )
            attacker.send([_update(attacker, rival)], [end])
    return ()


def equivocate(attacker: Attacker) -> Frames:
    """Its own node record with one stamp and other links for each neighbour."""
    own = attacker.corpus.node_record(attacker.id)
    if own is None:
        return
    for end in attacker.ends():
        node = attacker.neighbour(end)
        links = tuple(link for link in own.links if link[0] == node)
        record = replace(own, version=own.version + 3, links=links)
        attacker.send([_update(attacker, record)], [end])
    yield from ()


def system_interest(attacker: Attacker) -> Frames:
    """Interest in topics of brokers themselves."""
    incarnation, version = attacker.own_stamp(RecordKind.INTEREST)
    for name in ("$SYS/#", "$CONTROL/#", "$share/x/$SYS/#"):
        version += 1
        yield _update(attacker, InterestRecord(attacker.id, incarnation, version, version, (name,)))


def subscribe_everything(attacker: Attacker) -> Frames:
    """Interest in all topics."""
    incarnation, version = attacker.own_stamp(RecordKind.INTEREST)
    names = ("#", "+/#")
    record = InterestRecord(attacker.id, incarnation, version + 1, version + 1, names)
    yield _update(attacker, record)


def make_up_nodes(attacker: Attacker) -> Frames:
    """Nodes that do not exist, all linked to this member."""
    keys = [attacker.rng.randbytes(KEY_BYTES) for _ in range(MADE_UP_NODES)]
    invented = [node_id(key) for key in keys]
    attacker.ids.update(invented)
    now = attacker.wall_ms
    for node, key in zip(invented, keys, strict=True):
        to_here = ((attacker.id, 1_000),)
        record = NodeRecord(node, now, 1, now, key, "", (), 1.0, to_here)
        for signed in attacker.forgery.sign_invented(record):
            yield Update((signed,))
    own = attacker.corpus.node_record(attacker.id)
    if own is not None:
        links = tuple(sorted({*own.links, *((node, 1_000) for node in invented)}))
        yield _update(attacker, replace(own, version=own.version + 2, links=links))


def flood_records(attacker: Attacker) -> Frames:
    """Many versions of its own interest, with more and more filters."""
    incarnation, version = attacker.own_stamp(RecordKind.INTEREST)
    for turn in range(FLOOD_RECORDS):
        version += 1
        names = tuple(f"flood/{version}/{number}" for number in range(turn % 20))
        yield _update(attacker, InterestRecord(attacker.id, incarnation, version, version, names))


def _update(attacker: Attacker, record: Record) -> Update:
    """Return an update with a record that this member signed."""
    return Update((attacker.forgery.sign(record),))


# ---------------------------------------------------------------- unicast frames


def forge_receipts(attacker: Attacker) -> Frames:
    """Receipts of others, for everything and for more than was sent."""
    for origin, receiver, newest in _positions(attacker):
        for frame in _receipts(origin, receiver, newest):
            yield from _disguised(attacker, frame)


def _receipts(origin: NodeId, receiver: NodeId, newest: Publication) -> Iterator[Receipt]:
    epoch, position = newest.epoch, newest.sequence
    yield Receipt(origin, receiver, epoch, position, position)
    yield Receipt(origin, receiver, epoch, position + 1, position + 1)
    yield Receipt(origin, receiver, epoch, position + 100, 0, 65_536)
    yield Receipt(origin, receiver, epoch + MINUTE_MS, 1, 1)


def forge_pending_notices(attacker: Attacker) -> Frames:
    """Pending notices of others: of later positions, and of later epochs."""
    for origin, receiver, newest in _positions(attacker):
        for position in (
            (newest.epoch, newest.sequence + 50),
            (newest.epoch, LARGE),
            (newest.epoch + MINUTE_MS, 1),
            (attacker.wall_ms + 2 * AHEAD_MAX_MS, 1),
        ):
            yield from _disguised(attacker, PendingNotice(receiver, origin, *position))


def forge_repairs(attacker: Attacker) -> Frames:
    """Repair responses of others: with invented publications, or with everything lost."""
    for origin, receiver, newest in _positions(attacker):
        epoch, position = newest.epoch, newest.sequence
        false = replace(
            newest,
            sequence=position + 1,
            payload=attacker.new_payload(),
            receivers=(),
            macs=b"",
        )
        for frame in (
            RepairResponse(receiver, origin, epoch, 0, position + 1, 0, (encode(false),)),
            RepairResponse(receiver, origin, epoch, 0, position + 9, position + 9, ()),
            RepairResponse(receiver, origin, epoch, 0, 0, 0, (), acknowledged=position + 9),
        ):
            yield from _disguised(attacker, frame)


def forge_interest_acks(attacker: Attacker) -> Frames:
    """Acknowledgements of others for interest that they may not have."""
    for node in attacker.victims():
        interest = attacker.corpus.newest.get((RecordKind.INTEREST, node))
        if interest is None:
            continue
        stamp = (interest.incarnation, interest.version)
        others = [other for other in attacker.victims() if other != node]
        entries = [InterestAck(node, *stamp, other, 0, 0, 0) for other in others]
        entries += [InterestAck(node, *stamp, other, attacker.wall_ms, 99, 0) for other in others]
        yield from attacker.forgery.disguise_acks(InterestAcks(tuple(entries)))


def forge_retained(attacker: Attacker) -> Frames:
    """Retained values of others, newer than theirs."""
    version = (attacker.wall_ms + MINUTE_MS) * VERSIONS_PER_MS
    for origin in attacker.victims():
        for topic in attacker.corpus.topics[:4]:
            false = Publication(
                origin, 0, 0, 1, topic, attacker.new_payload(), retain=True, version=version
            )
            for receiver in attacker.victims():
                if receiver != origin:
                    values = RetainedValuesFrame(receiver, origin, (encode(false),))
                    yield from _disguised(attacker, values)
                    versions = RetainedVersions(receiver, origin, ((topic, version),))
                    yield from _disguised(attacker, versions)


def lie_about_positions(attacker: Attacker) -> Frames:
    """Unicast frames in its own name, with genuine proofs and false positions: receipts ahead of
    the journals of others, of other epochs and with requests for everything; notices of
    publications that do not exist; repairs and interest acknowledgements that nobody asked for."""
    me, now = attacker.id, attacker.wall_ms
    for (origin, receiver), newest in list(attacker.corpus.positions.items()):
        epoch, position = newest.epoch, newest.sequence
        if receiver == me:
            attacker.misled_origins.add(origin)
            for receipt in (
                *_receipts(origin, me, newest),
                Receipt(origin, me, epoch, 0, 0, LARGE),
                Receipt(origin, me, now + AHEAD_MAX_MS // 2, position, position),
                Receipt(origin, me, epoch, LARGE, LARGE, LARGE),
            ):
                yield from attacker.forgery.prove_unicast(receipt)
    for node in attacker.victims():
        for at in ((now, 1), (now, 500), (now + HOUR_MS, LARGE)):
            yield from attacker.forgery.prove_unicast(PendingNotice(node, me, *at))
        gaps = RepairResponse(node, me, now, 0, 900, 900, ())
        yield from attacker.forgery.prove_unicast(gaps)
        interest = attacker.corpus.newest.get((RecordKind.INTEREST, node))
        if interest is not None:
            stamp = (interest.incarnation, interest.version)
            acks = [InterestAck(node, *stamp, me, *at, 0) for at in ((now, LARGE), (0, 0))]
            yield from attacker.forgery.disguise_acks(InterestAcks(tuple(acks)))


def replay_unicasts(attacker: Attacker) -> Frames:
    """Unicast frames and acknowledgements that passed here, again."""
    for frame in list(attacker.corpus.unicasts):
        yield replace(frame, hops=0)
    if attacker.corpus.acks:
        yield InterestAcks(tuple(attacker.corpus.acks))


def forge_sealed(attacker: Attacker) -> Frames:
    """Sealed frames and proven acknowledgements that passed here, altered; and receipts with a
    false tag."""
    seen = [frame for frame in attacker.corpus.unicasts if isinstance(frame, SealedUnicast)]
    newest_of = {(frame.source, frame.destination): frame for frame in seen}
    for origin, receiver, newest in _positions(attacker):
        genuine = newest_of.get((receiver, origin))
        if genuine is not None:
            for ahead, receipt in enumerate(_receipts(origin, receiver, newest), start=1):
                box = encode(receipt) + bytes(TAG_BYTES)
                yield replace(genuine, number=genuine.number + ahead, box=box, hops=0)
    for frame in seen:
        if not attacker.owns(frame.source):
            altered = frame.box[:-1] + bytes((frame.box[-1] ^ 1,))
            for number in (frame.number, frame.number + 50, LARGE):
                yield replace(frame, number=number, box=altered, hops=0)
            yield replace(frame, number=frame.number + 50, hops=0)
            yield replace(frame, key_id=frame.key_id ^ 1, hops=0)
    acks = [ack for ack in attacker.corpus.acks if ack.mac and not attacker.owns(ack.source)]
    if acks:
        yield InterestAcks(tuple(replace(ack, version=ack.version + 1, hops=0) for ack in acks))


def _disguised(attacker: Attacker, frame: Unicast) -> Iterator[AnyFrame]:
    seen = attacker.corpus.sealed.get((frame.source, frame.destination))
    return attacker.forgery.disguise_unicast(frame, seen)


def _positions(attacker: Attacker) -> list[tuple[NodeId, NodeId, Publication]]:
    """Origins and receivers other than this member, with the newest publication."""
    return [
        (origin, receiver, newest)
        for (origin, receiver), newest in attacker.corpus.positions.items()
        if not attacker.owns(origin) and not attacker.owns(receiver)
    ]


# ---------------------------------------------------------------- publications


def jump_numbers(attacker: Attacker) -> Frames:
    """Publications of others with numbers far ahead, to make honest ones look old."""
    for known in _of_others(attacker):
        most = AHEAD_MAX_MS * NUMBERS_PER_MS
        for sequence in (known.sequence + 100, known.sequence + 5_000, most, LARGE):
            receivers = tuple((receiver, 0) for receiver, _ in known.receivers)
            false = replace(
                known, sequence=sequence, payload=attacker.new_payload(), receivers=receivers
            )
            yield from attacker.forgery.disguise_publication(false)
        later = replace(known, epoch=known.epoch + HOUR_MS, payload=attacker.new_payload())
        yield from attacker.forgery.disguise_publication(later)


def forge_origins(attacker: Attacker) -> Frames:
    """New publications in the name of others, at every QoS."""
    for known in _of_others(attacker):
        receivers = [node for node in attacker.victims() if node != known.origin]
        for qos in (0, 1, 2):
            false = replace(
                known,
                qos=qos,
                sequence=known.sequence + 1,
                payload=attacker.new_payload(),
                receivers=tuple((node, 0) for node in receivers) if qos else (),
                hops=0,
                macs=b"",
            )
            yield from attacker.forgery.disguise_publication(false)


def forge_guaranteed(attacker: Attacker) -> Frames:
    """Publications of others at QoS 1 and 2, with other contents, receivers and numbers."""
    for known in _of_others(attacker):
        if not known.qos:
            continue
        for sequence in (known.sequence, known.sequence + 1, known.sequence + 5_000):
            altered = replace(known, sequence=sequence, payload=attacker.new_payload(), hops=0)
            yield altered
            yield replace(altered, receivers=tuple((node, 0) for node, _ in known.receivers))
            receivers = tuple((node, 0) for node in attacker.victims() if node != known.origin)
            macs = known.macs[:MAC_BYTES] * len(receivers)
            yield replace(altered, receivers=receivers, macs=macs)
        yield replace(known, epoch=known.epoch + HOUR_MS, hops=0)
        yield replace(known, macs=b"", hops=0)


def replay_publications(attacker: Attacker) -> Frames:
    """Publications that passed here, again."""
    return [replace(known, hops=0) for known in list(attacker.corpus.publications)[-50:]]


def publish_local_topics(attacker: Attacker) -> Frames:
    """Its own publications to topics of brokers themselves, at every QoS."""
    return _publish(attacker, ("$SYS/uptime", "$CONTROL/x"))


def publish_anything(attacker: Attacker) -> Frames:
    """Its own publications to topics that others use, at every QoS."""
    return _publish(attacker, attacker.corpus.topics[:3])


def _publish(attacker: Attacker, topics: Iterable[str]) -> Iterator[Publication]:
    sequence = attacker.wall_ms
    for qos in (0, 1, 2):
        receivers = tuple((node, 0) for node in attacker.victims()) if qos else ()
        for topic in topics:
            sequence += 1
            made = Publication(
                attacker.id,
                attacker.wall_ms,
                sequence,
                qos,
                topic,
                attacker.new_payload(),
                target_groups=tuple(map(group_id, attacker.corpus.names[:3])),
                receivers=receivers,
            )
            yield from attacker.forgery.disguise_publication(made)


def _of_others(attacker: Attacker) -> list[Publication]:
    """The newest publication of every other origin, guaranteed ones apart."""
    newest = {
        (each.origin, each.qos > 0): each
        for each in attacker.corpus.publications
        if not attacker.owns(each.origin)
    }
    return list(newest.values())


def alter_payloads(attacker: Attacker) -> Frames:
    """From now on change the payloads of forwarded publications of QoS 1 and 2."""
    attacker.is_altering = True
    return ()


def drop_all(attacker: Attacker) -> Frames:
    """From now on forward no publication and no unicast frame of others."""
    attacker.dropped_share = 1.0
    return ()


def drop_half(attacker: Attacker) -> Frames:
    """From now on drop every second publication and unicast frame of others."""
    attacker.dropped_share = 0.5
    return ()


def forward_again(attacker: Attacker) -> Frames:
    """Stop dropping and altering."""
    attacker.dropped_share, attacker.is_altering = 0.0, False
    return ()


# ---------------------------------------------------------------- cores


def lie_about_distances(attacker: Attacker) -> Frames:
    """Announcements of all cores with distance 0, also with newer numbers."""
    for core, known in attacker.corpus.announcements.items():
        for ahead in (0, 1, 100):
            yield replace(known, sequence=known.sequence + ahead, distance=0, parents=())
        if core != attacker.id:
            yield replace(known, incarnation=known.incarnation + 1, sequence=1, distance=0)


def claim_all_groups(attacker: Attacker) -> Frames:
    """Claims to be the core of every group, with the announcement."""
    incarnation, version = attacker.own_stamp(RecordKind.CLAIMS)
    names = ("", *(name for name in attacker.corpus.names if name))
    claims = ClaimsRecord(attacker.id, incarnation, version + 1, version + 1, names)
    yield _update(attacker, claims)
    known = attacker.corpus.announcements.get(attacker.id)
    sequence = known.sequence + 1 if known else 1
    announcement = CoreAnnouncement(attacker.id, incarnation, sequence, 0)
    yield attacker.forgery.sign_announcement(announcement)


# ---------------------------------------------------------------- anything


def send_random_frames(attacker: Attacker) -> Frames:
    """Well-formed frames of any type."""
    return random_frames(attacker, RANDOM_FRAMES)


def say_goodbye(attacker: Attacker) -> Frames:
    """End all its links; they are dialled again."""
    return [Goodbye("bye")]


ATTACKS: dict[str, Attack] = {
    "forge-node-records": forge_node_records,
    "forge-interest": forge_interest,
    "forge-claims": forge_claims,
    "replay-records": replay_records,
    "future-records": future_records,
    "rival-records": rival_records,
    "equivocate": equivocate,
    "system-interest": system_interest,
    "subscribe-everything": subscribe_everything,
    "make-up-nodes": make_up_nodes,
    "flood-records": flood_records,
    "forge-receipts": forge_receipts,
    "forge-pending-notices": forge_pending_notices,
    "forge-repairs": forge_repairs,
    "forge-interest-acks": forge_interest_acks,
    "forge-retained": forge_retained,
    "lie-about-positions": lie_about_positions,
    "replay-unicasts": replay_unicasts,
    "forge-sealed": forge_sealed,
    "jump-numbers": jump_numbers,
    "forge-origins": forge_origins,
    "forge-guaranteed": forge_guaranteed,
    "replay-publications": replay_publications,
    "publish-local-topics": publish_local_topics,
    "publish-anything": publish_anything,
    "alter-payloads": alter_payloads,
    "drop-all": drop_all,
    "drop-half": drop_half,
    "forward-again": forward_again,
    "lie-about-distances": lie_about_distances,
    "claim-all-groups": claim_all_groups,
    "random-frames": send_random_frames,
    "say-goodbye": say_goodbye,
}


RANDOM_ATTACKS = tuple(ATTACKS)


class CompromisedMember(Attacker):
    """An attacker that knows all attacks."""

    def play(self, attack: str) -> None:
        """Play an attack now; nothing happens while the node does not run."""
        if self.node is not None:
            self.send(list(ATTACKS[attack](self)))


def compromise_members(world: World, steps: Iterable[ScheduledAction]) -> None:
    """Give the attackers of a schedule control of their nodes."""
    for step in steps:
        if isinstance(step.action, PlayAttack):
            place = step.action.node
            if place not in world.compromised:
                world.compromised[place] = CompromisedMember(world, world.sites[place])
