"""Memory of a node with many filters."""

import gc
import subprocess
import sys
from collections.abc import Sequence

from bench.console import say
from hansa.protocol.events import FrameReceived, LinkOpened, SubscriptionsGranted
from hansa.protocol.membership.records import InterestRecord, NodeRecord, Record
from hansa.protocol.model import Identity, LinkId, NodeId
from hansa.protocol.node import Node
from hansa.protocol.settings import ProtocolSettings
from hansa.protocol.wire.frames import PROTOCOL_VERSION, Hello, Update

NODES = 10
FILTERS_PER_NODE = 10_000


def measure() -> dict[str, object]:
    """Memory of a node that knows 100,000 filters of ten others (goal 150 MB)."""
    program = "from bench.memory import weigh; weigh()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    empty, full = (float(word) for word in done.stdout.split())
    say("an agent's protocol, empty", f"{empty:8.1f} MB resident")
    say(f"with {NODES * FILTERS_PER_NODE:,} filters", f"{full:8.1f} MB resident")
    return {"empty_mb": empty, "with_100000_filters_mb": full}


def weigh() -> None:
    """Print the resident memory before and after, in a separate process."""
    settings = ProtocolSettings(filters_per_neighbour_max=NODES * FILTERS_PER_NODE)
    before = resident_mb()
    node = fill_node([_filters(number) for number in range(NODES)], settings)
    gc.collect()
    sys.stdout.write(f"{before} {resident_mb()}\n")
    del node  # until here it stays in memory


def fill_node(filters: Sequence[Sequence[str]], settings: ProtocolSettings) -> Node:
    """Return a node that knows one other node for each of these sets of filters; its neighbour is
    the first of them, and has the filters of that one at its broker."""
    node = Node(Identity(NodeId(1), bytes(32), 1), settings)
    hello = Hello(
        PROTOCOL_VERSION,
        settings.federation,
        NodeId(2),
        bytes(32),
        1,
        "",
        settings.shared_settings_text(),
        0,
    )
    node.handle(LinkOpened(LinkId(1), dialled=True), 0.0)
    node.handle(FrameReceived(LinkId(1), hello), 0.0)
    for place, names in enumerate(filters):
        records = tuple(_records(place, len(filters), tuple(names)))
        node.handle(FrameReceived(LinkId(1), Update(records)), 0.0)
    node.handle(SubscriptionsGranted(tuple(filters[0])), 0.0)
    return node


def _records(place: int, nodes: int, filters: tuple[str, ...]) -> list[Record]:
    node = NodeId(2 + place)
    near = [2] if place else [1, *range(3, 2 + nodes)]
    links = tuple((NodeId(number), 0) for number in near)
    return [
        NodeRecord(node, 1, 1, 1, bytes(32), f"n{node}", (), 1.0, links),
        InterestRecord(node, 1, 1, 0, filters),
    ]


def _filters(place: int) -> tuple[str, ...]:
    return tuple(f"site/{place}/line/{n % 100}/sensor/{n}" for n in range(FILTERS_PER_NODE))


def resident_mb() -> float:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
