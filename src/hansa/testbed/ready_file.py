"""The ready file of `hansa up`: JSON with addresses and process ids of a running federation.

It appears only when the federation has converged, complete from the first moment (written beside
and renamed), and is removed at the end.
"""

import json
import os
from pathlib import Path

from hansa.errors import UsageError


class ReadyFile:
    def __init__(self, path: Path) -> None:
        """Remove the file of an earlier run; raise UsageError if the directory is not writable."""
        self._path = path
        try:
            path.unlink(missing_ok=True)
            self._temporary = path.with_name(f".{path.name}.{os.getpid()}")
            self._temporary.touch()
            self._temporary.unlink()
        except OSError as error:
            raise UsageError(f"--ready-file {path}: {error.strerror}") from error

    def write(self, description: dict[str, object]) -> None:
        self._temporary.write_text(json.dumps(description, indent=1) + "\n")
        self._temporary.replace(self._path)

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
