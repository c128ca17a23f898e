"""A process that writes a journal and prints the number of each committed publication.

`test_crash` runs it as a script, with a crash point in its environment.
"""

import sys
from pathlib import Path

from hansa.journal.records import CapturedRecord, OriginProgressRecord
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter

NODE = 0x0123456789ABCDEF
COMMITS = 12
SETTINGS = JournalSettings(segment_bytes=200, retention_bytes=800)


def main(path: Path) -> None:
    """Continue the journal; carry the sequence number of the last publication."""
    with JournalWriter(path, NODE, 7, SETTINGS) as writer:
        last = 0
        for record in writer.replay_last_segment():
            match record:
                case OriginProgressRecord(sequence=number) | CapturedRecord(sequence=number):
                    last = max(last, number)
        assert last == writer.next_sequence - 1, (last, writer.next_sequence)
        writer.carried_state = lambda: [OriginProgressRecord(1, 1, 1, last)]
        for _ in range(COMMITS):
            for _ in range(3):
                writer.append(CapturedRecord(last + 1, 1, "a/b", b"21.5", False, b"", (), 1, 0))
                last += 1
            writer.commit()
            sys.stdout.write(f"{last}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
