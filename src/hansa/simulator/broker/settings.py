"""The settings of a model broker, with Mosquitto's names and defaults."""

from dataclasses import dataclass
from enum import Enum


class MosquittoVersion(Enum):
    V2_0 = "2.0.11"
    """With the changes of Debian 12."""
    V2_1 = "2.1.2"


@dataclass(frozen=True, slots=True)
class MosquittoSettings:
    version: MosquittoVersion = MosquittoVersion.V2_0

    max_inflight_messages: int = 20
    """QoS 1 and 2 publications in flight per client and direction. The broker announces it as its
    Receive Maximum. A client's own Receive Maximum replaces it for publications to that client.
    0: no limit."""

    max_queued_messages: int = 1_000
    """QoS 1 and 2 publications that wait for one client, beside those in flight. 0: no limit."""

    allow_duplicate_messages: bool = False
    """Whether clients of 3.1.1 get one copy per overlapping subscription, as those of MQTT 5 do.
    False is the default of 2.0, true that of 2.1."""

    autosave_interval: int = 1_800
    """Seconds between saves, or changes between saves with `autosave_on_changes`. 0: the broker
    saves only when it stops in order."""

    autosave_on_changes: bool = False

    is_persistent: bool = True
    """Mosquitto's `persistence`. Its own default is false: then nothing survives a restart."""

    @property
    def is_v2_1(self) -> bool:
        return self.version is MosquittoVersion.V2_1
