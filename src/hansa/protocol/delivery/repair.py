"""What answers to a receiver hold: as much of the journal as their frames have room for, and
nothing but what was asked for."""

from collections.abc import Iterable

from hansa.errors import InvalidFrame
from hansa.protocol.effects import Recall
from hansa.protocol.events import Recalled
from hansa.protocol.model import Publication
from hansa.protocol.wire.codec import decode_publication
from hansa.protocol.wire.frames import Resend

OVERHEAD_BYTES = 64
"""What a publication takes in an answer beside what it carries, or a little more: without it a
journal of empty ones would be read to its end for the first thousands of them."""


def answer(order: Recall, owed: Iterable[Publication | None]) -> Recalled:
    """Take from the journal what is owed to who asked, in order; None stands where some cannot be
    read. What is lost behind the last one is for the next answer to say."""
    found: list[Publication] = []
    room = order.bytes_max
    for item in owed:
        if item is None:
            if found:
                break
            continue
        room -= _size(item)
        if found and room < 0:
            break
        found.append(item)
    upto = found[-1].number if found else order.upto
    return Recalled(order.to, order.epoch, order.after, upto, tuple(found))


def _size(item: Publication) -> int:
    return OVERHEAD_BYTES + len(item.topic) + len(item.properties) + len(item.payload)


def read(frame: Resend) -> list[Publication]:
    """Return what a frame of an answer brings; raise InvalidFrame if it cannot be one."""
    try:
        publications = [decode_publication(data) for data in frame.publications]
    except InvalidFrame:
        raise InvalidFrame("repair that cannot be read") from None
    before = frame.after
    for item in publications:
        if (item.origin, item.life) != (frame.node, frame.epoch):
            raise InvalidFrame("repair with publications of another node")
        if not before < item.number <= frame.upto or not item.qos:
            raise InvalidFrame("repair with publications that nobody asked for")
        before = item.number
    return publications
