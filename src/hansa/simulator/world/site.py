"""One place: a broker, the agent beside it while it runs, and what the agent's disk remembers."""

import hashlib
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from hansa.protocol.effects import Gap
from hansa.protocol.model import KEY_BYTES, LinkId, NodeId, Publication
from hansa.protocol.node import Identity, Node
from hansa.protocol.retained.digest import Value
from hansa.protocol.settings import ProtocolSettings
from hansa.simulator.options import DiskOptions
from hansa.simulator.world.broker import Broker
from hansa.simulator.world.disk import Disk
from hansa.simulator.world.network import End

NEVER = float("inf")


class Memory:
    """What survives a crash of the agent: its state directory."""

    __slots__ = ("clock_s", "disk", "id", "incarnation", "key", "put_back_at", "retained")

    def __init__(
        self, node: NodeId, key: bytes, incarnation: int = 0, disk: Disk | None = None
    ) -> None:
        """Start as a new agent does, that never ran."""
        self.id = node
        self.key = key
        self.incarnation = incarnation
        self.disk = disk or Disk()
        self.retained: dict[str, Value] = {}
        """What the node believes that its broker stores, as it was last saved."""
        self.clock_s = 0.0
        """How far the machine's clock is ahead of the true time."""
        self.put_back_at: float | None = None
        """When this old state took the place of a newer one, if it did."""

    @classmethod
    def new(cls, node: NodeId, key: bytes, disk: DiskOptions | None) -> "Memory":
        """Return what an agent has that never ran, on such a disk."""
        return cls(node, key, disk=Disk(disk.keep_max) if disk else None)

    def begin_life(self, now: float) -> None:
        """Take the incarnation of a new start from the clock, as a live agent does, so that two
        starts with one state directory never share it; a clock that was set back does not count."""
        self.incarnation = max(self.incarnation + 1, round((now + self.clock_s) * 1000))

    def copy(self) -> "Memory":
        """Return what a copied state directory holds."""
        twin = Memory(self.id, self.key, self.incarnation, self.disk.copy())
        twin.retained = dict(self.retained)
        return twin


class Site:
    """One place of a world. The world moves it; it decides nothing."""

    __slots__ = (
        "address",
        "arriving",
        "backlog",
        "backup",
        "broker",
        "capacity",
        "deadline",
        "durable",
        "ends",
        "frozen",
        "generation",
        "life",
        "links",
        "memory",
        "name",
        "node",
        "observed",
        "place",
        "powered",
        "timer_at",
        "told_at",
        "version",
    )

    def __init__(self, place: int, memory: Memory, name: str, capacity: float) -> None:
        """Start with the machine on and the agent not yet running."""
        self.place = place
        self.name = name
        self.capacity = capacity
        self.address = ""
        """Where others reach it, if links are made at run time."""
        self.broker = Broker()
        self.memory = memory
        self.backup: Memory | None = None
        """A copy of its memory, made earlier."""
        self.generation = 0
        """How often the agent lost its memory."""
        self.node: Node | None = None
        self.life = 0
        """Counts starts and stops of the agent: what belongs to an old life is void."""
        self.durable = False
        """Whether the agent uses its disk, and its broker keeps its session."""
        self.observed = False
        """Whether the agent knows what its broker's clients want."""
        self.told_at = 0.0
        """When the agent has heard of, or will hear of, the last change of that."""
        self.powered = True
        self.frozen = False
        self.backlog: list[Callable[[], None]] = []
        """What the agent will do about what came while it was suspended."""
        self.arriving: deque[Publication | Gap] = deque()
        """What the agent has taken of other nodes, and missed, and not written yet."""
        self.ends: dict[LinkId, End] = {}
        self.links = 0
        self.deadline: float | None = None
        """When the node wants to be looked at: only what it handles changes that."""
        self.timer_at = NEVER
        """When the world will next look at the node's deadline."""
        self.version = 0
        """Counts what may have changed the node's control state."""

    @property
    def listening(self) -> bool:
        """Whether an agent runs here, if only suspended."""
        return self.node is not None

    @property
    def served(self) -> bool:
        """Whether an agent is at work here, for clients of its broker."""
        return self.active and self.broker.connected

    @property
    def active(self) -> bool:
        """Whether an agent runs here and is not suspended."""
        return self.node is not None and not self.frozen

    def new_link(self) -> LinkId:
        """Return a LinkId that was never used at this place."""
        self.links += 1
        return LinkId(self.links)

    def start(self, settings: ProtocolSettings, now: float, durable: bool = False) -> None:
        """Begin a new life with what the memory holds; the disk counts only if it is durable."""
        memory = self.memory
        memory.begin_life(now)
        identity = Identity(
            node=memory.id,
            key=memory.key,
            incarnation=memory.incarnation,
            name=self.name,
            addresses=(self.address,) if self.address else (),
            capacity=self.capacity,
        )
        self.life += 1
        self.powered = True
        self.durable = durable
        past = memory.disk.past(memory.incarnation) if durable else None
        if past is not None:
            past = replace(past, retained=dict(memory.retained))
        self.node = Node(identity, settings, past)

    def back_up(self) -> bool:
        """Copy the memory as it is on disk now."""
        self.backup = self.memory.copy()
        self.backup.disk.packets = dict(self.memory.disk.packets)  # of the same broker
        return True

    def put_back(self, now: float) -> None:
        """Take the copy for the memory."""
        assert self.backup is not None
        self.memory = self.backup
        self.memory.put_back_at = now
        self.back_up()

    def stop(self, now: float, survives: float = 0.0) -> None:
        """End a life; only the memory stays, with a part of what was not safe yet."""
        assert self.node is not None
        self.memory.disk.note_leases(self.node.chart.leases, now)
        self.life += 1
        self.broker.connected = False
        self.node = None
        self.observed = self.frozen = False
        self.backlog = []
        self.arriving.clear()
        self.timer_at = NEVER
        disk, broker = self.memory.disk, self.broker
        disk.crash(survives)
        if not self.durable:  # else the broker keeps the agent's session
            disk.forget_bound()
            broker.withdraw(list(broker.granted))
            broker.session.clear()
            broker.held.clear()
            broker.has_session = False


class Naming:
    """Which ids and keys nodes get: the place itself as in the papers, or drawn from the seed."""

    def __init__(self, seed: int, places: int, shuffle: bool) -> None:
        """Give every place its first id."""
        self._seed = seed
        self._shuffle = shuffle
        self._chance = random.Random(f"{seed} ids")
        self._space = range(places) if not shuffle else range(10 * places)
        self.ids: list[NodeId] = [NodeId(number) for number in self._first(places)]
        self._used = set(self.ids)

    def _first(self, places: int) -> Sequence[int]:
        return self._chance.sample(self._space, places) if self._shuffle else self._space

    def new_id(self) -> NodeId:
        """Return an id that no node ever had. Drawn ids may be smaller than all others."""
        number = len(self._used)
        while number in self._used:
            number = self._chance.randrange(10 * len(self._used)) if self._shuffle else number + 1
        self._used.add(NodeId(number))
        return NodeId(number)

    def key(self, place: int, generation: int) -> bytes:
        """Return the key of a node in one of its generations."""
        text = f"{self._seed} {place} {generation}"
        return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()
