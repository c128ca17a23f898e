"""Untrusted text, made safe for a terminal or a log.

Names of nodes, client ids, topics and reasons come from other machines. Control characters in them
could move the cursor, change colours, forge log lines or, on some terminals, type commands.
`printable` escapes them (`\\x1b`). It is applied to responses of agents and managers when they are
read (`printable_json`), to log lines (`LogFormatter`) and to error messages (`hansa.cli.main`).
"""

import logging
from typing import Any


def printable(text: str, keep: str = "") -> str:
    """Return a text with control, format and surrogate characters escaped, except `keep`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def printable_json(value: Any) -> Any:
    """Return a JSON value with all its strings made printable."""
    match value:
        case str():
            return printable(value)
        case list():
            return [printable_json(each) for each in value]
        case dict():
            return {printable(name): printable_json(each) for name, each in value.items()}
    return value


class LogFormatter(logging.Formatter):
    """Formats a record as one line; only tracebacks have more."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return printable(super().formatException(ei), keep="\n")


def log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
