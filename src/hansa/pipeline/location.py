"""Where a lake is: a local path or a URI; checked before Spark is started, where possible."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from hansa.errors import UsageError

MARKER = "_hansa/lake.json"
"""File that every lake has."""
CREATE_HINT = "`hansa pipeline run --lake {} SOURCE` creates one"
SMALL_BYTES = 64 << 20
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def absolute_uri(location: str) -> str:
    """Return a lake's location without a trailing slash; a local path becomes absolute."""
    return str(Path(location).absolute()) if is_local(location) else location.rstrip("/")


def is_local(location: str) -> bool:
    """Return whether a location is a path, not a URI."""
    return not _SCHEME.match(location)


def are_small(locations: Iterable[str]) -> bool:
    """Return whether all are local directories that together have little data, so that Spark will
    run for a short time."""
    total = 0
    for location in locations:
        if not is_local(location):
            return False
        for directory, _, names in os.walk(location):
            for name in names:
                try:
                    total += (Path(directory) / name).stat().st_size
                except OSError:  # an agent has just removed it
                    continue
            if total > SMALL_BYTES:
                return False
    return True


def not_a_lake(location: str, is_in_use: bool) -> UsageError:
    hint = "use another location for one" if is_in_use else CREATE_HINT.format(location)
    return UsageError(f"{location} is not a lake; {hint}")


def require_lake(location: str) -> None:
    """Raise UsageError if a local lake does not exist; Spark checks other storage later."""
    if is_local(location) and not (Path(location) / MARKER).is_file():
        path = Path(location)
        raise not_a_lake(location, path.is_file() or (path.is_dir() and any(path.iterdir())))


def require_place(location: str) -> None:
    """Raise UsageError if a local lake neither exists nor can be created."""
    if not is_local(location) or (Path(location) / MARKER).is_file():
        return
    path = Path(location)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise not_a_lake(location, is_in_use=True)
