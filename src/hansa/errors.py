"""Exceptions for foreseen failures.

    HansaError
    ├── UsageError          invalid input of the user: one line on stderr, exit code 2
    │   ├── InvalidTopic    not an MQTT topic name or topic filter
    │   ├── InvalidCertificate    a certificate, request or revocation list cannot be used
    │   └── JournalError    a journal on disk cannot be used
    │       ├── JournalUnusable    disk full, no permission, another writer
    │       │   └── AgentUnreachable    the agent that serves the journal does not answer
    │       ├── JournalDamaged     a durable record cannot be read
    │       └── JournalTrimmed     the requested record was deleted by retention
    ├── TableBroken         a table of the pipeline violates its key or its checks: exit code 1
    ├── PromiseBroken       a federation under test violated a guarantee: exit code 1
    ├── InvalidFrame        invalid bytes from a peer: counted, logged, dropped
    └── BrokerMisbehaved    a violation of MQTT: the connection to that broker is closed

A message names the rule, the value and the place: "announce from 7f3a: 900 hops, the limit is
64". Any other exception is a bug: exit code 70, traceback on request.
"""


class HansaError(Exception):
    """Base class of all foreseen failures."""


class UsageError(HansaError):
    """Invalid input of the user or in a file; the message says what to change."""


class InvalidTopic(UsageError):
    """A text that breaks MQTT's rules for topic names or topic filters."""


class InvalidCertificate(UsageError):
    """A certificate, request or revocation list of this node or of a peer that is refused."""


class JournalError(UsageError):
    """A journal cannot be opened, written or read; the message names the file."""


class JournalUnusable(JournalError):
    """Disk full, no permission, or another writer. Durable records are not affected."""


class AgentUnreachable(JournalUnusable):
    """The agent that serves a journal does not answer; a retry may succeed."""


class JournalDamaged(JournalError):
    """A durable record or header differs from what was written."""

    def __init__(self, message: str, offset: int, resume: int | None = None) -> None:
        """`offset` is the damaged place; from `resume` on, if known, the journal is readable."""
        super().__init__(message)
        self.offset = offset
        self.resume = resume


class JournalTrimmed(JournalError):
    """The requested record is older than the journal."""

    def __init__(self, message: str, first: int) -> None:
        """`first` is the first available offset, or number if a number was requested."""
        super().__init__(message)
        self.first = first


class TableBroken(HansaError):
    """A new table violates its key or its checks; it is not published."""


class PromiseBroken(HansaError):
    """A federation under fault injection violated a guarantee."""


class InvalidFrame(HansaError):
    """A peer sent invalid bytes; the receiving node continues."""


class BrokerMisbehaved(HansaError):
    """A broker violated MQTT or a negotiated limit; its connection is closed."""

    def __init__(self, message: str, reason: int = 0x81) -> None:
        """`reason` is the MQTT 5 reason code of the DISCONNECT."""
        super().__init__(message)
        self.reason = reason


def install_extra(extra: str) -> str:
    """Return the command that installs an extra; Hansa is not on a package index yet."""
    return (
        f"pip install '.[{extra}]' in a checkout of Hansa, or with its wheel, pip install"
        f" './hansa-VERSION-py3-none-any.whl[{extra}]'"
    )
