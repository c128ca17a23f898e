"""The file of expected echoes (`delivery/dedup/echo`), for a session of MQTT 3.1.1 that lasts.

It is written when the agent stops and removed when it starts: after a crash, an old state would
hide publications of clients. Without it, the agent forwards echoes that the broker has queued.
"""

from pathlib import Path

import msgspec

from hansa.delivery.dedup.echo import SavedEchoes
from hansa.journal.disk import replace_file, sync_directory

_decoder = msgspec.msgpack.Decoder(SavedEchoes)
_encoder = msgspec.msgpack.Encoder()


class EchoFile:
    """The file of one agent."""

    def __init__(self, path: Path) -> None:
        """Read and remove the file of the previous incarnation."""
        self._path = path
        self.problem = ""
        """Why the file could not be used."""
        self.saved_echoes: SavedEchoes | None = None
        """None after a crash, and if the broker sends no echoes."""
        try:
            data = path.read_bytes()
            path.unlink()
            sync_directory(path.parent)
            self.saved_echoes = _decoder.decode(data)
        except FileNotFoundError:
            pass
        except OSError as error:  # it must not be used twice
            self.problem = f"cannot read or remove {path}: {error.strerror}"
        except ValueError as error:  # from msgspec
            self.problem = f"{path} is damaged, some publications may be duplicated: {error}"

    def save(self, echoes: SavedEchoes | None) -> None:
        """Write the echoes for the next incarnation; raise OSError if that fails."""
        if echoes is not None:
            replace_file(self._path, _encoder.encode(echoes))
