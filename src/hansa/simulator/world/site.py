"""A site: a broker, the agent beside it while it runs, and the agent's persistent state."""

import hashlib
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hansa.protocol.model import KEY_BYTES, Identity, LinkId, NodeId, Publication, node_id
from hansa.protocol.node import Node
from hansa.protocol.retained.digest import RetainedEntry
from hansa.simulator.options import DiskOptions
from hansa.simulator.world.authority import SimulatedAuthority
from hansa.simulator.world.broker import SiteBroker
from hansa.simulator.world.disk import SimulatedDisk
from hansa.simulator.world.key_exchange import SimulatedKeyExchange
from hansa.simulator.world.network import LinkEnd

if TYPE_CHECKING:
    from hansa.simulator.world.delivery import SimulatedDelivery

NEVER = float("inf")


class PersistentState:
    """The state directory of an agent: survives a crash."""

    __slots__ = ("clock_offset_s", "disk", "id", "incarnation", "key", "restored_at", "retained")

    def __init__(
        self, node: NodeId, key: bytes, incarnation: int = 0, disk: SimulatedDisk | None = None
    ) -> None:
        """Start as a new agent."""
        self.id = node
        self.key = key
        self.incarnation = incarnation
        self.disk = disk or SimulatedDisk()
        self.retained: dict[str, RetainedEntry] = {}
        """The retained state of the node, as last saved."""
        self.clock_offset_s = 0.0
        """Seconds by which the machine's clock is ahead of true time."""
        self.restored_at: float | None = None
        """When this old state replaced a newer one, if it did."""

    @classmethod
    def for_new_agent(cls, node: NodeId, key: bytes, disk: DiskOptions | None) -> "PersistentState":
        """Return the state of a new agent, on a disk of the same kind."""
        return cls(node, key, disk=SimulatedDisk(disk.journal_max) if disk else None)

    def start_incarnation(self, now: float) -> None:
        """Take the incarnation from the clock as a live agent does, so that two starts with one
        state directory never share it; a clock that was set back does not lower it."""
        self.incarnation = max(self.incarnation + 1, round((now + self.clock_offset_s) * 1000))

    def copy(self) -> "PersistentState":
        """Return the content of a copied state directory."""
        twin = PersistentState(self.id, self.key, self.incarnation, self.disk.copy())
        twin.retained = dict(self.retained)
        return twin


class Site:
    """The state of one site; the world drives it."""

    __slots__ = (
        "address",
        "delivered_publications",
        "delivery",
        "postponed_calls",
        "backup",
        "broker",
        "capacity",
        "deadline",
        "is_durable",
        "link_ends",
        "is_frozen",
        "identity_count",
        "process_run",
        "last_link_id",
        "state",
        "name",
        "node",
        "is_interest_known",
        "place",
        "is_powered",
        "timer_at",
        "interest_reported_at",
        "change_count",
    )

    def __init__(
        self, place: int, state: PersistentState, name: str, capacity: float, queue_max: int = 0
    ) -> None:
        """Start with the machine on and the agent stopped. `queue_max` bounds what the broker
        queues for the agent; 0 is no limit."""
        self.place = place
        self.name = name
        self.capacity = capacity
        self.address = ""
        """The address for links made at run time."""
        self.broker = SiteBroker(queue_max)
        self.state = state
        self.backup: PersistentState | None = None
        """An earlier copy of its state."""
        self.identity_count = 0
        """How often the agent lost its state."""
        self.node: Node | None = None
        self.process_run = 0
        """Counts starts and stops of the agent, to discard calls of earlier processes."""
        self.is_durable = False
        """Whether the agent uses its disk, and its broker keeps its session."""
        self.is_interest_known = False
        """Whether the agent knows the subscriptions of its broker's clients."""
        self.interest_reported_at = 0.0
        """When the agent learned, or will learn, of the last change of these."""
        self.is_powered = True
        self.is_frozen = False
        self.postponed_calls: list[Callable[[], None]] = []
        """Calls that were due while the agent was suspended."""
        self.delivery: SimulatedDelivery | None = None
        """The delivery core of the agent, while it runs."""
        self.delivered_publications: dict[int, Publication] = {}
        """Publications of other nodes that were given to delivery here, by ledger number."""
        self.link_ends: dict[LinkId, LinkEnd] = {}
        self.last_link_id = 0
        self.deadline: float | None = None
        """The node's deadline; only handling an event changes it."""
        self.timer_at = NEVER
        """When the world next checks the node's deadline."""
        self.change_count = 0
        """Counts events that may have changed the node's control state."""

    @property
    def is_listening(self) -> bool:
        """Whether an agent runs here, suspended or not."""
        return self.node is not None

    @property
    def is_serving_clients(self) -> bool:
        """Whether an agent serves the clients of its broker."""
        return self.is_active and self.broker.is_connected

    @property
    def is_active(self) -> bool:
        """Whether an agent runs here and is not suspended."""
        return self.node is not None and not self.is_frozen

    def new_link_id(self) -> LinkId:
        """Return a LinkId that this site never used."""
        self.last_link_id += 1
        return LinkId(self.last_link_id)

    def start_process(self, now: float, durable: bool) -> Identity:
        """Start an agent process with the persistent state; return its identity."""
        state = self.state
        state.start_incarnation(now)
        self.process_run += 1
        self.is_powered = True
        self.is_durable = durable
        return Identity(
            node=state.id,
            key=state.key,
            incarnation=state.incarnation,
            name=self.name,
            addresses=(self.address,) if self.address else (),
            capacity=self.capacity,
        )

    def make_exchange_keys(self, seed: int) -> SimulatedKeyExchange:
        """Return the exchange keys of the running process."""
        return SimulatedKeyExchange(f"{seed} {self.place} {self.process_run}")

    def save_backup(self) -> bool:
        """Copy the persistent state as it is on disk now."""
        self.backup = self.state.copy()
        return True

    def restore_backup(self, now: float) -> None:
        """Replace the persistent state by the copy."""
        assert self.backup is not None
        self.state = self.backup
        self.state.restored_at = now
        self.save_backup()

    def stop(self, now: float, surviving_fraction: float = 0.0) -> None:
        """Stop the agent process; keep the persistent state and part of the unsynced writes."""
        assert self.node is not None and self.delivery is not None
        self.state.disk.save_leases(self.node.membership, now)
        self.process_run += 1
        self.delivery.connection.stop()
        self.node = self.delivery = None
        self.is_interest_known = self.is_frozen = False
        self.postponed_calls = []
        self.timer_at = NEVER
        self.state.disk.crash(surviving_fraction)
        if not self.is_durable:
            self.state.disk.erase_delivery()


class IdentityAllocator:
    """Assigns node ids and keys: the place itself as in the papers, drawn from the seed, or as in a
    live federation the digest of the key."""

    def __init__(self, seed: int, places: int, shuffle: bool, derive_ids: bool) -> None:
        """Assign every place its first id."""
        self._seed = seed
        self._shuffle = shuffle
        self._derive_ids = derive_ids
        self._rng = random.Random(f"{seed} ids")
        self._id_range = range(places) if not shuffle else range(10 * places)
        self.initial_ids: list[NodeId] = [
            NodeId(number) for number in self._draw_initial_ids(places)
        ]
        self._used = set(self.initial_ids)
        self.authority = SimulatedAuthority(seed)

    def new_identity(self, place: int, generation: int) -> tuple[NodeId, bytes]:
        """Return id and key of a new agent; generation 0 is the first one at a place."""
        key = self.make_key(place, generation)
        if self._derive_ids:
            return node_id(key), key
        return (self.new_id() if generation else self.initial_ids[place]), key

    def _draw_initial_ids(self, places: int) -> Sequence[int]:
        return self._rng.sample(self._id_range, places) if self._shuffle else self._id_range

    def new_id(self) -> NodeId:
        """Return an unused id. Drawn ids may be smaller than all others."""
        number = len(self._used)
        while number in self._used:
            number = self._rng.randrange(10 * len(self._used)) if self._shuffle else number + 1
        self._used.add(NodeId(number))
        return NodeId(number)

    def make_key(self, place: int, generation: int) -> bytes:
        """Return the key of a node in one of its generations."""
        text = f"{self._seed} {place} {generation}"
        return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()
