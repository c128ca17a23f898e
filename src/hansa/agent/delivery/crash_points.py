"""Crash points of capture, injection and epoch rollover (see `hansa.journal.crash`)."""

from enum import IntEnum


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
