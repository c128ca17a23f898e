"""Where a test can end the process on a publication's way (see `hansa.journal.crash`)."""

from enum import IntEnum


class Point(IntEnum):
    """What was just done. Points are passed once per batch."""

    CAPTURE_APPENDED = 101
    CAPTURE_DURABLE = 102
    CAPTURE_ACKNOWLEDGED = 103
    SETTLED_APPENDED = 104
    SETTLED_DURABLE = 105
    SETTLED_TOLD = 106
    BOUND_APPENDED = 111
    BOUND_DURABLE = 112
    PUBLISHED = 113
    ACCEPTED_APPENDED = 114
    ACCEPTED_DURABLE = 115
    RELEASED = 116
    COMPLETED = 117
    SESSION_LOST = 118
    SESSION_FORGOTTEN = 119
    RENEWAL_BEGUN = 121
    RENEWAL_COPIED = 122
    RENEWAL_DURABLE = 123
    RENEWAL_IN_PLACE = 124
    RENEWAL_OVER = 125
