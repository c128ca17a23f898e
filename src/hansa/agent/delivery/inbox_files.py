"""The files of the inbox log. A corrupt log is renamed and a new one started, with an alarm."""

import time
from pathlib import Path

from hansa.delivery.inbox import PUBLISH_PACKET_IDS, InboxLog
from hansa.errors import JournalDamaged
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter
from hansa.protocol.model import NodeId


class InboxFiles:
    """The inbox log of one node on disk."""

    def __init__(self, path: Path, node: NodeId, epoch: int, settings: JournalSettings) -> None:
        """Open the log, or create one."""
        self.damage_text = ""
        """Corruption found in this log or a previous one, for an alarm."""
        try:
            self.writer = JournalWriter(path, node, epoch, settings)
            self.damage_text = self.writer.damage
            self.log_state = InboxLog(self.writer, self.writer.replay_last_segment(), time.time_ns)
        except JournalDamaged as error:
            moved = path.with_name(f"{path.name}-damaged-{epoch}")
            self.damage_text = f"{error}; moved to {moved.name}, publications may be lost"
            path.rename(moved)
            self.writer = JournalWriter(path, node, epoch, settings)
            # The broker may still use packet ids of lost entries: start at another one.
            first_index = 1 + epoch % PUBLISH_PACKET_IDS
            self.log_state = InboxLog(self.writer, (), time.time_ns, first_index)
