"""Crash points of capture, injection and epoch rollover (see `hansa.journal.crash`)."""

from collections.abc import Iterable
from enum import IntEnum

from hansa.delivery import inputs
from hansa.delivery.effects import (
    Effect,
    FeedNode,
    Publish,
    RemoveConnectMarker,
    SendHandshakePackets,
)
from hansa.journal.crash import ARMED_POINT, pass_crash_point
from hansa.mqtt.packets import PubCompPacket, PubRecPacket, PubRelPacket
from hansa.protocol.events import InboxCommitted, JournalCommitted


class DeliveryCrashPoint(IntEnum):
    """The step that was just done. A batch passes each point once."""

    CAPTURE_APPENDED = 101
    CAPTURE_DURABLE = 102
    CAPTURE_ACKNOWLEDGED = 103
    COMPLETED_APPENDED = 104
    COMPLETED_DURABLE = 105
    PUBCOMP_SENT = 106
    INBOX_APPENDED = 111
    INBOX_DURABLE = 112
    PUBLISHED = 113
    ACCEPTED_APPENDED = 114
    ACCEPTED_DURABLE = 115
    RELEASED = 116
    INJECTION_COMPLETED = 117
    SESSION_LOST = 118
    SESSION_LOSS_DURABLE = 119
    ROLLOVER_STARTED = 121
    ROLLOVER_COPIED = 122
    ROLLOVER_DURABLE = 123
    ROLLOVER_RENAMED = 124
    ROLLOVER_FINISHED = 125


IS_ARMED = ARMED_POINT > 100
"""Whether this process has to end at one of these points."""


def pass_after_input(happened: inputs.Input, caused: Iterable[Effect]) -> None:
    """Pass the points after the core has handled an input; no effect is performed yet."""
    match happened:
        case inputs.PublicationsReceived():
            pass_crash_point(DeliveryCrashPoint.CAPTURE_APPENDED)
        case inputs.Deliver():
            pass_crash_point(DeliveryCrashPoint.INBOX_APPENDED)
        case inputs.Committed():
            _pass_after_commit(caused)
        case inputs.Connected(session_present=False):
            pass_crash_point(DeliveryCrashPoint.SESSION_LOST)
        case inputs.HandshakePacketsReceived(batch):
            match batch[0]:
                case PubRelPacket():
                    pass_crash_point(DeliveryCrashPoint.COMPLETED_APPENDED)
                case PubRecPacket():
                    pass_crash_point(DeliveryCrashPoint.ACCEPTED_APPENDED)
                case _:
                    pass_crash_point(DeliveryCrashPoint.INJECTION_COMPLETED)


def _pass_after_commit(caused: Iterable[Effect]) -> None:
    """Pass the points of what has become durable: a commit of other records passes none."""
    for effect in caused:
        match effect:
            case FeedNode(JournalCommitted()):
                pass_crash_point(DeliveryCrashPoint.CAPTURE_DURABLE)
            case FeedNode(InboxCommitted()):
                pass_crash_point(DeliveryCrashPoint.INBOX_DURABLE)
            case RemoveConnectMarker():
                pass_crash_point(DeliveryCrashPoint.SESSION_LOSS_DURABLE)


def pass_before_effect(effect: Effect) -> None:
    """Pass the point before an effect is performed."""
    match effect:
        case SendHandshakePackets(batch) if any(isinstance(p, PubCompPacket) for p in batch):
            pass_crash_point(DeliveryCrashPoint.COMPLETED_DURABLE)
        case SendHandshakePackets(batch) if isinstance(batch[0], PubRelPacket):
            pass_crash_point(DeliveryCrashPoint.ACCEPTED_DURABLE)


def pass_after_effect(effect: Effect) -> None:
    """Pass the point after an effect was performed."""
    match effect:
        case SendHandshakePackets(batch) if any(isinstance(p, PubCompPacket) for p in batch):
            pass_crash_point(DeliveryCrashPoint.PUBCOMP_SENT)
        case SendHandshakePackets(batch) if isinstance(batch[0], PubRelPacket):
            pass_crash_point(DeliveryCrashPoint.RELEASED)
        case SendHandshakePackets():
            pass_crash_point(DeliveryCrashPoint.CAPTURE_ACKNOWLEDGED)
        case Publish():
            pass_crash_point(DeliveryCrashPoint.PUBLISHED)
