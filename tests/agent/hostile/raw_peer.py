"""A hostile or broken neighbour for tests, and what an attack must not change.

`RawPeer` is a plain TCP client of an agent's link port. It sends any bytes, or well-formed frames;
after a valid hello it keeps its link alive with heartbeats from a thread of its own, so a test only
sends what it is about. `unharmed` measures the agents of a federation before and after an attack.

    with RawPeer(node.link_port) as peer, unharmed(live):
        peer.hello()
        peer.announce_self()
        peer.send(Fetch(((Kind.INTEREST, victim),) * 200))
"""

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from tests.agent.guaranteed import GuaranteedClient
from tests.agent.live import PATIENCE, Live, eventually

from hansa.agent.links.fragments import StreamReassembly
from hansa.agent.links.stream import LENGTH, WINDOW_ACK_BIT, WINDOW_ACK_BYTES, split_frames
from hansa.agent.storage.state_directory import INBOX_DIRECTORY, JOURNAL_DIRECTORY
from hansa.errors import InvalidFrame
from hansa.identity.keys import KEY_FILE
from hansa.protocol.membership.records import NodeRecord
from hansa.protocol.model import NodeId, Publication, node_id
from hansa.protocol.wire.codec import FRAME_BYTES_MAX, decode, encode
from hansa.protocol.wire.frames import AnyFrame as ControlFrame
from hansa.protocol.wire.frames import Heartbeat, Hello, Update
from hansa.testbed.federation import LocalNode

HEARTBEAT_S = 0.5
READ_BYTES = 1 << 16
GROWTH_BYTES_MAX = 50 << 20
"""Limit for the growth of an agent's resident memory during an attack."""

Frame = ControlFrame | Publication
_F = TypeVar("_F", bound=Frame)


def framed(*frames: bytes) -> bytes:
    """Put the length before each frame, as a stream link does."""
    return b"".join(LENGTH.pack(len(frame)) + frame for frame in frames)


class RawPeer:
    """One connection to an agent's link port."""

    def __init__(
        self,
        port: int,
        name: str = "raw",
        key: bytes | None = None,
        incarnation: int | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Connect. Without a key, a fresh Ed25519 key is made; the node id follows from the key.
        With a context, the peer is a member that dials."""
        self.key = key or Ed25519PrivateKey.generate().public_key().public_bytes_raw()
        self.node: NodeId = node_id(self.key)
        self.name = name
        self.incarnation = incarnation or time.time_ns() // 1_000_000
        self.received: list[Frame] = []
        """Received frames, in order."""
        self.received_bytes = bytearray()
        """Their bytes."""
        self.closed = threading.Event()
        """Set when the agent has closed the connection, or the test has."""
        self.agent: Hello | None = None
        """The agent's hello, if received."""
        self._version = 0
        self._beat = 0
        self._heard = Heartbeat(0, 0, 0, 0)
        self._beating = False
        self._sending = threading.Lock()
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_side=True)
        self._socket.settimeout(HEARTBEAT_S / 5)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close without a goodbye."""
        self.closed.set()
        self._thread.join()
        self._socket.close()

    # ------------------------------------------------------------ sending

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes; ignore that the agent closed the link."""
        with self._sending, suppress(OSError):
            self._socket.settimeout(PATIENCE)
            self._socket.sendall(data)
            self._socket.settimeout(HEARTBEAT_S / 5)

    def send(self, *frames: Frame) -> None:
        """Send well-formed frames with one write."""
        self.send_bytes(framed(*map(encode, frames)))

    def hello(self, **changes: Any) -> Self:
        """Introduce this peer with the agent's own federation and settings, and keep the link
        alive from now on. `changes` replace fields of the hello."""
        ours = self.wait_for(Hello)
        self.agent = ours
        mine = replace(
            ours, node=self.node, key=self.key, incarnation=self.incarnation, name=self.name
        )
        self.send(replace(mine, **changes))
        self._beating = True
        return self

    def record(self, **changes: Any) -> NodeRecord:
        """The next version of this peer's own record, linked to the agent."""
        assert self.agent is not None, "say hello first"
        self._version += 1
        made = NodeRecord(
            node=self.node,
            incarnation=self.incarnation,
            version=self._version,
            first_incarnation=self.incarnation,
            key=self.key,
            name=self.name,
            addresses=(),
            capacity=1.0,
            links=((self.agent.node, 100),),
        )
        return replace(made, **changes)

    def announce_self(self, **changes: Any) -> Self:
        """Flood this peer's own record, so that it becomes a member of the federation."""
        self.send(Update((self.record(**changes),)))
        return self

    # ------------------------------------------------------------ receiving

    def wait_for(self, kind: type[_F], patience: float = PATIENCE) -> _F:
        """Wait for a frame of a type; return the first of them."""

        def found() -> _F | None:
            answer = next((each for each in list(self.received) if isinstance(each, kind)), None)
            ended = answer is None and self.closed.is_set()
            assert not ended, f"the agent closed the connection without a {kind.__name__}"
            return answer

        answer: _F = eventually(found, kind.__name__, patience)
        return answer

    def wait_closed(self, patience: float = PATIENCE) -> None:
        """Wait until the agent has closed the connection."""
        assert self.closed.wait(patience), "the agent keeps the connection"

    def _run(self) -> None:
        buffer, assembly, due, pending = bytearray(), StreamReassembly(FRAME_BYTES_MAX), 0.0, 0
        while not self.closed.is_set():
            with suppress(TimeoutError):
                try:
                    data = self._receive()
                except ConnectionError:
                    data = b""
                if not data:
                    self.closed.set()
                    return
                buffer += data
                frames, used, handled, _ = split_frames(bytes(buffer), assembly)
                del buffer[:used]
                pending += handled
                for frame in frames:
                    self._take(frame)
            if pending >= WINDOW_ACK_BYTES:  # an honest reader, so that the window stays open
                self.send_bytes(LENGTH.pack(WINDOW_ACK_BIT | pending))
                pending = 0
            if self._beating and time.monotonic() >= due:
                due = time.monotonic() + HEARTBEAT_S
                self._beat += 1
                # The agent's own digest: the peer claims to know all, so nothing is compared.
                self.send(Heartbeat(self._beat, self._heard.number, 0, self._heard.digest))

    def _receive(self) -> bytes:
        if isinstance(self._socket, ssl.SSLSocket):
            # Two threads must not use it at once. A thread that waits for bytes does not hold it:
            # the other thread might never get it.
            with self._sending:
                is_ready = self._socket.pending() > 0
            readable = select.poll()  # `select.select` takes no descriptor above 1,023
            readable.register(self._socket, select.POLLIN)
            if not is_ready and not readable.poll(1_000 * HEARTBEAT_S / 5):
                raise TimeoutError
            with self._sending:
                return self._socket.recv(READ_BYTES)
        return self._socket.recv(READ_BYTES)

    def _take(self, data: bytes) -> None:
        self.received_bytes += data
        with suppress(InvalidFrame):
            frame = decode(data)
            if isinstance(frame, Heartbeat):
                self._heard = frame
            self.received.append(frame)


# ---------------------------------------------------------------- what an attack must not change


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has ended")


def has_neighbour(node: LocalNode, peer: RawPeer) -> bool:
    found: Any = node.status()["neighbours"]
    return f"{peer.node:016x}" in found


def has_member(node: LocalNode, peer: RawPeer) -> bool:
    """Whether an agent has a peer as a member of its federation."""
    found: Any = node.status()["reachable_nodes"]
    return f"{peer.node:016x}" in found


def counters(node: LocalNode) -> dict[str, int]:
    """Return the counters of an agent's /status."""
    found: Any = node.status()["counters"]
    return dict(found)


def counted(node: LocalNode, reason: str) -> int:
    """Return the sum of all counters whose name contains a text."""
    return sum(value for name, value in counters(node).items() if reason in name)


def wait_counted(node: LocalNode, reason: str, least: int = 1) -> None:
    """Wait until a refusal has been counted, on /status and among the metrics."""
    eventually(lambda: counted(node, reason) >= least, f"{least} counted as {reason!r}")


def state_files(node: LocalNode) -> dict[str, bytes]:
    """Return which of the files that must never disappear exist, the key with its content."""
    state = node.directory / "agent"
    found = {name: b"" for name in (JOURNAL_DIRECTORY, INBOX_DIRECTORY) if (state / name).is_dir()}
    if (state / KEY_FILE).exists():
        found[KEY_FILE] = (state / KEY_FILE).read_bytes()
    return found


def agent_pid(node: LocalNode) -> int:
    """Return the process id of a node's agent, which must run."""
    assert node.agent is not None
    assert node.agent.returncode is None, f"agent {node.name} ended: {node.last_log_line()}"
    os.kill(node.agent.pid, 0)
    return node.agent.pid


@contextmanager
def unharmed(live: Live, growth_bytes: int = GROWTH_BYTES_MAX) -> Iterator[None]:
    """Check that no agent ends, loses files or grows by more than a bound while the body runs."""
    before = [
        (agent_pid(node), state_files(node), resident_bytes(agent_pid(node))) for node in live.nodes
    ]
    yield
    for node, (pid, files, memory) in zip(live.nodes, before, strict=True):
        assert agent_pid(node) == pid
        assert files.items() <= state_files(node).items(), f"agent {node.name} lost files"
        grown = resident_bytes(pid) - memory
        assert grown <= growth_bytes, f"agent {node.name} grew by {grown >> 20} MB"
        node.status()


def guaranteed_client(live: Live, number: int, **options: Any) -> GuaranteedClient:
    """Return a client for QoS 1 and 2 at a broker; the federation ends it with the test."""
    return live.client_of(GuaranteedClient, number, **options)


def assert_delivers(live: Live, source: int, target: int, topic: str, count: int = 3) -> None:
    """Publish at QoS 0, 1 and 2 at one broker; all must arrive once at a subscriber of another.

    It waits until the source knows the interest, not until all members confirmed it: a raw peer
    that is a member confirms nothing.
    """
    subscriber = guaranteed_client(live, target).subscribe_qos2(topic)
    subscriber_id = str(live.nodes[target].status()["node"])

    def is_known() -> bool:
        interest: Any = live.nodes[source].status()["interest"]
        return topic in interest["remote"].get(subscriber_id, ())

    eventually(is_known, f"{topic} of {target} known at {source}")
    publisher = guaranteed_client(live, source)
    wait_for_path(publisher, subscriber, topic)
    sent = [b"%d-%d" % (qos, number) for qos in (0, 1, 2) for number in range(count)]
    for qos in (0, 1, 2):
        publisher.publish_guaranteed(
            qos, topic, *(each for each in sent if each[:1] == b"%d" % qos)
        )
    assert sorted(subscriber.read_until(len(sent))) == sorted(sent)
    publisher.close()
    subscriber.close()


def wait_for_path(publisher: GuaranteedClient, subscriber: GuaranteedClient, topic: str) -> None:
    """Publish probes until one arrives: at QoS 0 those before the path stands are lost."""

    def arrives() -> bool:
        publisher.publish(topic, b"probe")
        subscriber.read_for(0.2)
        return bool(subscriber.received)

    eventually(arrives, f"a path for {topic}")
    subscriber.read_for(0.3)
    subscriber.forget()
