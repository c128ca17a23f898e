"""Every exception that Hansa raises on purpose.

    HansaError
    ├── UsageError          the user asked for something that cannot be: one line, exit code 2
    │   └── InvalidTopic    not an MQTT topic name or topic filter
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


class InvalidFrame(HansaError):
    """A peer sent what no correct peer sends. It never stops the node that receives it."""


class BrokerMisbehaved(HansaError):
    """A broker sent what MQTT forbids, or more than was agreed; only that connection suffers."""

    def __init__(self, message: str, reason: int = 0x81) -> None:
        """Say what was wrong; `reason` is the MQTT 5 reason code to leave with."""
        super().__init__(message)
        self.reason = reason
