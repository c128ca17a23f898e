"""Contents of repair responses: as much of the journal as fits, and only what was requested."""

from collections.abc import Iterable

from hansa.errors import InvalidFrame
from hansa.protocol.effects import ReadJournal
from hansa.protocol.events import JournalRead
from hansa.protocol.model import Publication
from hansa.protocol.wire.codec import decode_publication
from hansa.protocol.wire.frames import RepairResponse

OVERHEAD_BYTES = 64
"""Upper estimate of a publication's bytes in a response besides its contents. Without it, a journal
of empty publications would be read to its end."""


def select_for_repair(command: ReadJournal, pending: Iterable[Publication | None]) -> JournalRead:
    """Select the receiver's publications from the journal, in order; None stands for unreadable
    ones. Losses after the last one are reported by the next response."""
    found: list[Publication] = []
    room = command.bytes_max
    for item in pending:
        if item is None:
            if found:
                break
            continue
        room -= _size(item)
        if found and room < 0:
            break
        found.append(item)
    upto = found[-1].sequence if found else command.upto
    return JournalRead(command.receiver, command.epoch, command.after, upto, tuple(found))


def _size(item: Publication) -> int:
    return OVERHEAD_BYTES + len(item.topic) + len(item.properties) + len(item.payload)


def decode_repair(frame: RepairResponse) -> list[Publication]:
    """Return the publications of a response; raise InvalidFrame if they are invalid."""
    try:
        publications = [decode_publication(data) for data in frame.publications]
    except InvalidFrame:
        raise InvalidFrame("invalid repair response") from None
    before = frame.after
    for item in publications:
        if (item.origin, item.epoch) != (frame.source, frame.epoch):
            raise InvalidFrame("repair response with publications of another node")
        if not before < item.sequence <= frame.upto or not item.qos:
            raise InvalidFrame("repair response with publications that were not requested")
        before = item.sequence
    return publications
