"""One origin and one receiver for fault tests."""

import os
import re
from pathlib import Path

from tests.agent.delivery.star import ORIGIN, RECEIVER, Star
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.process import Scene

TOPIC = "kept"
ROOM_BYTES = 24 << 10


def fill(disk: Path) -> Path:
    """Fill a disk except for ROOM_BYTES; return the file that fills it."""
    free = os.statvfs(disk)
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(free.f_bavail * free.f_bsize - ROOM_BYTES))
    return ballast


class Pair(Star):
    """One origin, one receiver, and a client at each."""

    def __init__(self, scene: Scene, directory: Path, *lines: str) -> None:
        super().__init__(scene, directory, TOPIC, lines=lines)
        self._published = 0

    def live(self, number: int, **settings: object) -> None:
        """Start an agent; with the second one, also the clients."""
        self.start(number, **settings)
        if len(self.agents) == len(self.brokers):
            self.wait_installed()
            self.subscriber = GuaranteedClient(self.brokers[RECEIVER].port).subscribe_qos2(TOPIC)
            self.publisher = GuaranteedClient(self.brokers[ORIGIN].port)

    def lose_session(self) -> None:
        """Delete the sessions of the receiver's broker."""
        self.subscriber.kill()
        self._scene.forget(self.brokers[RECEIVER])
        self.subscriber = GuaranteedClient(self.brokers[RECEIVER].port).subscribe_qos2(TOPIC)

    def publish(self, count: int) -> None:
        """Publish `count` more distinct payloads of 1,000 bytes."""
        numbers = range(self._published, self._published + count)
        self._published += count
        self.publisher.publish_guaranteed(2, TOPIC, *(b"%01000d" % number for number in numbers))

    def arrived(self, count: int) -> list[int]:
        """Wait for `count` payloads and return their numbers."""
        return [int(payload) for payload in self.subscriber.read_until(count)]

    def gap(self) -> range:
        """Return the numbers in the receiver's gap alarm."""
        text = self.alarm(RECEIVER, "delivery gap")
        found = re.search(r"positions (\d+) to (\d+) of .* are lost", text)
        assert found, text
        return range(int(found[1]) - 1, int(found[2]))

    def inbox(self) -> object:
        return self.status(RECEIVER)["delivery"]["inbox"]

    def has_pending(self, count: int) -> bool:
        """Whether `count` publications are pending at the origin."""
        status = self.status(ORIGIN)
        return bool(status) and list(status["delivery"]["pending"].values()) == [count]

    def close(self) -> None:
        self.subscriber.kill()
        self.publisher.kill()
