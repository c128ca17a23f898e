"""Every exception that Hansa raises on purpose.

    HansaError
    ├── UsageError          the user asked for something that cannot be: one line, exit code 2
    │   ├── InvalidTopic    not an MQTT topic name or topic filter
    │   └── JournalError    a journal on disk that cannot be used as it is
    │       ├── JournalUnusable    disk full, no rights, another writer: what to change is said
    │       ├── JournalDamaged     what was durable there cannot be read any more
    │       └── JournalTrimmed     what is asked for was dropped by retention
    ├── TableBroken         a table of the pipeline that breaks its own rules: exit code 1
    ├── PromiseBroken       a federation under test did what it never should: exit code 1
    ├── InvalidFrame        bytes from a peer that mean nothing: counted, logged, dropped
    └── BrokerMisbehaved    MQTT that the standard forbids: the connection to that broker ends

A message says the rule, the value and the place: "announce from 7f3a: 900 hops, the limit is
64". Whatever else is raised is a fault of ours: exit code 70, traceback on request.
"""


class HansaError(Exception):
    """The root: catching it catches what Hansa foresaw, and no bug."""


class UsageError(HansaError):
    """Bad input from the person at the keyboard or in a file; the message says what to change."""


class InvalidTopic(UsageError):
    """A text that breaks MQTT's rules for topic names or topic filters."""


class JournalError(UsageError):
    """A journal cannot be opened, written or read; the message names the file."""


class JournalUnusable(JournalError):
    """The system refuses: disk full, no rights, another writer. Nothing durable is lost by it."""


class AgentUnreachable(JournalUnusable):
    """An agent whose journal is to be read does not answer; it may later."""


class JournalDamaged(JournalError):
    """A record or header that was durable is not what was written."""

    def __init__(self, message: str, offset: int, resume: int | None = None) -> None:
        """Say where, and from which offset on one can read again, if that is known."""
        super().__init__(message)
        self.offset = offset
        self.resume = resume


class JournalTrimmed(JournalError):
    """Older than the journal goes back."""

    def __init__(self, message: str, first: int) -> None:
        """Say the first offset or number, as was asked for, that is still there."""
        super().__init__(message)
        self.first = first


class TableBroken(HansaError):
    """A table that the pipeline made has rows that its key or its rules forbid; it is not shown."""


class PromiseBroken(HansaError):
    """A federation that is broken on purpose did what it should not, whatever is done to it."""


class InvalidFrame(HansaError):
    """A peer sent what no correct peer sends. It never stops the node that receives it."""


class BrokerMisbehaved(HansaError):
    """A broker sent what MQTT forbids, or more than was agreed; only that connection suffers."""

    def __init__(self, message: str, reason: int = 0x81) -> None:
        """Say what was wrong; `reason` is the MQTT 5 reason code to leave with."""
        super().__init__(message)
        self.reason = reason


def install_extra(extra: str) -> str:
    """Return how to add what an extra of the package brings. Hansa is on no package index yet."""
    return (
        f"pip install '.[{extra}]' in a checkout of Hansa, or with its wheel, pip install"
        f" './hansa-VERSION-py3-none-any.whl[{extra}]'"
    )
