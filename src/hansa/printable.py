"""Text from outside, made safe for a terminal or a log.

Names of nodes, client ids, topics and reasons are chosen by others. Raw control characters in them
could move the cursor, change colours, forge a line of a log or, with some terminals, type commands.
`printable` shows such characters as escapes (`\\x1b`); everything that comes from outside passes it
before it is printed: answers of agents and managers where they are read (`printable_json`), log
lines in `LogFormatter`, error messages in `hansa.cli.main`.
"""

import logging
from typing import Any


def printable(text: str, keep: str = "") -> str:
    """Return a text without control, format or surrogate characters but those in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def printable_json(value: Any) -> Any:
    """Return what JSON held, with every text in it made printable."""
    match value:
        case str():
            return printable(value)
        case list():
            return [printable_json(each) for each in value]
        case dict():
            return {printable(name): printable_json(each) for name, each in value.items()}
    return value


class LogFormatter(logging.Formatter):
    """Writes one line per record, whatever is in it; only tracebacks have more."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """Return the traceback."""
        return printable(super().formatException(ei), keep="\n")


def log_to_stderr(level: str) -> None:
    """Set up the log of a program."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
