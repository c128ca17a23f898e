"""Proof of the source of frames that relays carry: unicast frames, interest acknowledgements and
publications of QoS 1 and 2 (protocol.md section 11).

Two nodes share a secret that follows from the exchange keys in their records; other nodes cannot
compute it. Each direction has separate keys. An exchange key is made when a process starts and
never written to disk. So frames of an earlier run of either node prove nothing, and a counter in
memory is enough to use no nonce twice, whatever is restored or copied.

- Unicast frames are encrypted and numbered (`SealedUnicast`): a relay sees source and destination.
- Interest acknowledgements carry a MAC. They name a version of an interest, so a replayed one says
  nothing new.
- Publications of QoS 1 and 2 carry one MAC per receiver, over everything that relays must not
  change. The number in the journal makes a replayed one a duplicate.

A MAC begins with the id of the two exchange keys. So a receiver distinguishes a frame that was made
for an earlier run of one node from an altered one.
"""

import hashlib
import struct
from collections.abc import Mapping
from hmac import compare_digest
from typing import Protocol

from msgspec.structs import replace

from hansa.errors import InvalidFrame
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import KEY_BYTES, MAC_BYTES, NodeId, Publication
from hansa.protocol.wire.codec import BULK_RESPONSE, decode, encode
from hansa.protocol.wire.frames import (
    UNICASTS,
    InterestAck,
    RetainedVersions,
    SealedBulk,
    SealedUnicast,
    Unicast,
)

REPLAY_WINDOW = 4_096
"""Numbers below the greatest one of a source that are remembered; older frames are refused, and
their source sends them again. Bulk responses have a window of their own: links let other frames
overtake them, and a large one takes longer than 4,096 small frames of a busy source."""

UNKNOWN_KEY = "sealed unicast for other exchange keys"
FORGED_UNICAST = "forged unicast"
REPLAYED_UNICAST = "replayed unicast"
FORGED_ACK = "forged interest ack"
UNPROVEN_ACK = "interest ack without proof of its source"
ALTERED_PUBLICATION = "altered publication"
UNPROVEN_PUBLICATION = "publication without proof of its origin"

_DOMAIN = b"hansa pair keys 1"
_KEY_ID_BYTES = 2
_NO_MAC = bytes(MAC_BYTES)
_CONTENT = struct.Struct(">QQQBBQHI")
_ENTRY = struct.Struct(">QQ")
_ACK = struct.Struct(">QQQQQQ")
_HEADER = struct.Struct(">QQHQ")
_NONCE = struct.Struct(">IQ")
# Purposes of MACs: a MAC for one proves nothing for the other.
_FOR_PUBLICATION, _FOR_ACK = b"publication", b"interest ack"


class Cipher(Protocol):
    """Authenticated encryption with one key."""

    def seal(self, nonce: bytes, data: bytes, header: bytes) -> bytes:
        """Return the encrypted data with a tag that also covers the header."""

    def open(self, nonce: bytes, box: bytes, header: bytes) -> bytes | None:
        """Return the data; None if box or header were altered."""


class KeyExchange(Protocol):
    """The private exchange key of one run of a node."""

    @property
    def public_key(self) -> bytes:
        """32 bytes, for the node's record."""

    def agree(self, peer_key: bytes) -> bytes | None:
        """Return the secret shared with the owner of a public key; None if the key is invalid."""

    def make_cipher(self, key: bytes) -> Cipher: ...


class ReplayWindow:
    """The numbers that were received from one source."""

    __slots__ = ("_greatest", "bits")

    def __init__(self) -> None:
        self._greatest = 0
        self.bits = 1  # bit n stands for the number `greatest - n`; 0 is never used

    def is_new(self, number: int) -> bool:
        behind = self._greatest - number
        return behind < 0 or (behind < REPLAY_WINDOW and not self.bits >> behind & 1)

    def add(self, number: int) -> None:
        ahead = number - self._greatest
        if ahead <= 0:
            self.bits |= 1 << -ahead
            return
        self._greatest = number
        kept = self.bits << ahead if ahead < REPLAY_WINDOW else 0
        self.bits = (kept | 1) & ((1 << REPLAY_WINDOW) - 1)


class DirectionKeys:
    """The keys for frames from one node to another."""

    __slots__ = ("cipher", "key_id", "mac_key")

    def __init__(self, keys: KeyExchange, secret: bytes, context: bytes) -> None:
        derived = hashlib.blake2b(context, key=secret).digest()
        self.cipher = keys.make_cipher(derived[:KEY_BYTES])
        self.mac_key = derived[KEY_BYTES:]
        exchange_keys = context[-2 * KEY_BYTES :]
        self.key_id = hashlib.blake2b(exchange_keys, digest_size=_KEY_ID_BYTES).digest()

    def mac(self, purpose: bytes, data: bytes) -> bytes:
        size = MAC_BYTES - _KEY_ID_BYTES
        tag = hashlib.blake2b(data, key=self.mac_key, digest_size=size, person=purpose).digest()
        return self.key_id + tag


class PeerKeys:
    """The keys shared with one run of another node, and the numbers received from it."""

    __slots__ = ("bulk_window", "exchange_key", "incoming", "outgoing", "window")

    def __init__(
        self, exchange_key: bytes, incoming: DirectionKeys, outgoing: DirectionKeys
    ) -> None:
        self.exchange_key = exchange_key
        self.incoming = incoming
        self.outgoing = outgoing
        self.window = ReplayWindow()
        self.bulk_window = ReplayWindow()


class PairAuthenticator:
    """Seals, signs and checks frames between this node and all others."""

    def __init__(
        self,
        node: NodeId,
        federation: str,
        keys: KeyExchange,
        nodes: Mapping[NodeId, NodeRecord],
        peers_max: int,
    ) -> None:
        """`nodes` holds the records of all known nodes."""
        self._node = node
        self._federation = federation
        self._keys = keys
        self._nodes = nodes
        self._peers_max = peers_max
        self._peers: dict[NodeId, PeerKeys] = {}
        self._sealed_count = 0  # over all peers, so that a forgotten peer repeats no nonce

    # ------------------------------------------------------------ unicast frames

    def seal(self, frame: Unicast) -> SealedUnicast | None:
        """Return the frame that relays carry; None if the destination's key is unknown."""
        peer = self.keys_for(frame.destination)
        if peer is None:
            return None
        self._sealed_count += 1
        number = self._sealed_count
        key_id = int.from_bytes(peer.outgoing.key_id, "big")
        header = _HEADER.pack(frame.destination, self._node, key_id, number)
        data = encode(frame)
        box = peer.outgoing.cipher.seal(_NONCE.pack(0, number), data, header)
        kind = SealedBulk if data[0] == BULK_RESPONSE else SealedUnicast
        return kind(frame.destination, self._node, key_id, number, box, via=frame.via)

    def open(self, sealed: SealedUnicast) -> Unicast:
        """Return the frame that its source sealed; raise InvalidFrame with the reason if there is
        none."""
        peer = self.keys_for(sealed.source)
        if peer is None or int.from_bytes(peer.incoming.key_id, "big") != sealed.key_id:
            raise InvalidFrame(UNKNOWN_KEY)
        is_bulk = isinstance(sealed, SealedBulk)
        window = peer.bulk_window if is_bulk else peer.window
        if not window.is_new(sealed.number):
            raise InvalidFrame(REPLAYED_UNICAST)
        header = _HEADER.pack(self._node, sealed.source, sealed.key_id, sealed.number)
        nonce = _NONCE.pack(0, sealed.number)
        data = peer.incoming.cipher.open(nonce, sealed.box, header)
        # A relay could change the kind of a frame to replay it in the other window.
        if data is None or is_bulk != (data[:1] == bytes((BULK_RESPONSE,))):
            raise InvalidFrame(FORGED_UNICAST)
        window.add(sealed.number)
        frame = decode(data)
        if not isinstance(frame, UNICASTS) or frame.destination != self._node:
            raise InvalidFrame("sealed unicast with another frame inside")
        # A node that knows a newer value informs the former owner in the name of the new one.
        if frame.source != sealed.source and not isinstance(frame, RetainedVersions):
            raise InvalidFrame("sealed unicast in the name of another node")
        return frame

    # ------------------------------------------------------------ interest acknowledgements

    def sign_ack(self, ack: InterestAck) -> InterestAck:
        """Return an acknowledgement with its MAC; unchanged if the destination's key is unknown:
        then the destination will ask again."""
        peer = self.keys_for(ack.destination)
        if peer is None:
            return ack
        return replace(ack, mac=peer.outgoing.mac(_FOR_ACK, _ack_content(ack)))

    def ack_refusal(self, ack: InterestAck) -> str | None:
        """Return why an acknowledgement for this node is not one of its source, None if it is."""
        peer = self.keys_for(ack.source)
        if peer is None or ack.mac[:_KEY_ID_BYTES] != peer.incoming.key_id:
            return UNPROVEN_ACK
        is_proven = compare_digest(peer.incoming.mac(_FOR_ACK, _ack_content(ack)), ack.mac)
        return None if is_proven else FORGED_ACK

    # ------------------------------------------------------------ publications

    def sign_publication(self, publication: Publication) -> Publication:
        """Return a publication of this node with a MAC for each receiver."""
        content = _content_digest(publication)
        macs: list[bytes] = []
        for entry in publication.receivers:
            peer = self.keys_for(entry[0])
            data = content + _ENTRY.pack(*entry)
            macs.append(peer.outgoing.mac(_FOR_PUBLICATION, data) if peer else _NO_MAC)
        return replace(publication, macs=b"".join(macs))

    def publication_refusal(self, publication: Publication) -> str | None:
        """Return why a publication for this node is not what its origin sent to it; None if it is,
        or if it is not for this node."""
        entry, at = None, 0
        for entry in publication.receivers:
            if entry[0] == self._node:
                break
            at += MAC_BYTES
        else:
            return None
        mac = publication.macs[at : at + MAC_BYTES]
        peer = self.keys_for(publication.origin)
        if peer is None or mac[:_KEY_ID_BYTES] != peer.incoming.key_id:
            return UNPROVEN_PUBLICATION
        data = _content_digest(publication) + _ENTRY.pack(*entry)
        is_proven = compare_digest(peer.incoming.mac(_FOR_PUBLICATION, data), mac)
        return None if is_proven else ALTERED_PUBLICATION

    # ------------------------------------------------------------ keys

    def keys_for(self, node: NodeId) -> PeerKeys | None:
        """Return the keys shared with the present run of a node, None if its key is unknown."""
        record = self._nodes.get(node)
        if record is None or not record.exchange_key:
            return None
        peer = self._peers.get(node)
        if peer is not None and peer.exchange_key == record.exchange_key:
            return peer
        secret = self._keys.agree(record.exchange_key)
        if secret is None:
            return None
        own = (self._node, self._keys.public_key)
        other = (node, record.exchange_key)
        incoming = DirectionKeys(self._keys, secret, self._context(other, own))
        outgoing = DirectionKeys(self._keys, secret, self._context(own, other))
        if node not in self._peers and len(self._peers) >= self._peers_max:
            del self._peers[next(iter(self._peers))]
        peer = self._peers[node] = PeerKeys(record.exchange_key, incoming, outgoing)
        return peer

    def _context(self, source: tuple[NodeId, bytes], destination: tuple[NodeId, bytes]) -> bytes:
        """Return all that the keys of one direction depend on besides the secret."""
        name = self._federation.encode()
        nodes = _ENTRY.pack(source[0], destination[0])
        return b"".join((_DOMAIN, bytes((len(name),)), name, nodes, source[1], destination[1]))


def _ack_content(ack: InterestAck) -> bytes:
    return _ACK.pack(
        ack.destination, ack.incarnation, ack.version, ack.source, ack.epoch, ack.sequence
    )


def _content_digest(publication: Publication) -> bytes:
    """Return the digest of everything in a publication that is the same for all receivers and that
    relays must not change."""
    topic, properties = publication.topic.encode(), publication.properties
    head = _CONTENT.pack(
        publication.origin,
        publication.epoch,
        publication.sequence,
        publication.qos,
        publication.retain,
        publication.version,
        len(topic),
        len(properties),
    )
    digest = hashlib.blake2b(head + topic + properties, digest_size=32)
    digest.update(publication.payload)
    return digest.digest()
