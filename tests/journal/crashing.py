"""A process that writes a journal and says what it has promised, until it is done or ends.

Every line that it prints is a promise: the captured publication with this number was acknowledged.
`test_crash` runs it as a script, with a crash point in its environment.
"""

import sys
from pathlib import Path

from hansa.journal.records import Captured, Progress
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import Writer

NODE = 0x0123456789ABCDEF
COMMITS = 12
SETTINGS = JournalSettings(segment_bytes=200, retention_bytes=800)


def main(path: Path) -> None:
    """Go on where the journal ends; carry the number of the last captured publication."""
    with Writer(path, NODE, 7, SETTINGS) as writer:
        last = 0
        for record in writer.replay():
            match record:
                case Progress(number=number) | Captured(number=number):
                    last = max(last, number)
        assert last == writer.next_number - 1, (last, writer.next_number)
        writer.carry = lambda: [Progress(1, 1, 1, last)]
        for _ in range(COMMITS):
            for _ in range(3):
                writer.append(Captured(last + 1, 1, "a/b", b"21.5", False, b"", (), 1, 0))
                last += 1
            writer.commit()
            sys.stdout.write(f"{last}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
