"""Proofs of a compromised member: everything that its own keys can sign or seal.

It has the keys of its node, and no others. So a frame in another node's name carries a proof of
this member, a proof that another frame had, or none.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from hansa.protocol.membership.authentication import NODE_DOMAIN
from hansa.protocol.membership.records import KIND_OF, NodeRecord, Record
from hansa.protocol.model import Publication
from hansa.protocol.node import Node
from hansa.protocol.pair_authentication import PairAuthenticator
from hansa.protocol.wire.frames import (
    AnyFrame,
    CoreAnnouncement,
    InterestAcks,
    SealedUnicast,
    Unicast,
)
from hansa.simulator.world.authority import SimulatedAuthenticator


class Forgery:
    """Signs and seals with the keys of one node; without certificates it adds nothing."""

    def __init__(self, node: Node) -> None:
        # The attacker controls the process, so it uses the keys inside the node.
        self._records = node._overlay.authentication  # noqa: SLF001
        self._pairs: PairAuthenticator | None = node._unicast._pair_authenticator  # noqa: SLF001

    def sign(self, record: Record) -> Record:
        """Return a record with a signature of this member, whichever node it names. A set must be
        whole."""
        if isinstance(record, NodeRecord):
            return self._records.sign_node_record(record)
        digest = self._records.empty_digest.changed(record.added, ())
        stamp = (record.incarnation, record.version)
        signature = self._records.sign_set(KIND_OF[type(record)], record.node, stamp, digest)
        return replace(record, signature=signature)

    def sign_invented(self, record: NodeRecord) -> Iterator[NodeRecord]:
        """Yield the record of a node that this member invented, signed with its key: without
        certificates, and with those of this member."""
        signer = self._records._authenticator  # noqa: SLF001
        for certificates in ((), self._records.certificates):
            made = replace(record, certificates=certificates)
            data = self._records._node_data(made)  # noqa: SLF001
            if isinstance(signer, SimulatedAuthenticator):
                made = replace(made, signature=signer.sign_as(record.key, NODE_DOMAIN, data))
            yield made

    def sign_announcement(self, frame: CoreAnnouncement) -> CoreAnnouncement:
        stamp = (frame.incarnation, frame.sequence)
        return replace(frame, signature=self._records.sign_announcement(frame.core, stamp))

    def disguise_unicast(self, frame: Unicast, seen: SealedUnicast | None) -> Iterator[AnyFrame]:
        """Yield a frame in another node's name: as it is; sealed by this member; and with that seal
        under the name of its pretended source. `seen` is a sealed frame of that source."""
        yield frame
        if self._pairs is None:
            return
        sealed = self._pairs.seal(frame)
        if sealed is None:
            return
        yield sealed
        key_id, number = (seen.key_id, seen.number + 1_000) if seen else (sealed.key_id, 1)
        yield replace(sealed, source=frame.source, key_id=key_id, number=number)

    def prove_unicast(self, frame: Unicast) -> Iterator[AnyFrame]:
        """Yield a frame in this member's own name as its honest node would send it."""
        sealed = None if self._pairs is None else self._pairs.seal(frame)
        yield frame if sealed is None else sealed

    def disguise_acks(self, frame: InterestAcks) -> Iterator[InterestAcks]:
        yield frame
        if self._pairs is not None:
            yield InterestAcks(tuple(map(self._pairs.sign_ack, frame.entries)))

    def disguise_publication(self, publication: Publication) -> Iterator[Publication]:
        """Yield a publication in another node's name: with the codes of the one that it was made
        from, and with codes of this member."""
        yield publication
        if self._pairs is not None and publication.receivers:
            yield self._pairs.sign_publication(publication)
