"""Hansa, a Mosquitto bridge, NATS leaf nodes and minimal relays, with the same clients.

The scenarios have the names of EMQ's open MQTT benchmark. All systems of a scenario run at the same
time and take turns in short rounds; the best round of each counts, and the most lost in one.
"""

import asyncio
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bench.console import say
from bench.live import (
    PACKET_BYTES,
    PAYLOAD_BYTES,
    TOPIC,
    Client,
    CpuMeter,
    Load,
    open_load,
    publication,
)
from bench.peer_kinds import Links, Peer, Unavailable, make_peer
from hansa.errors import UsageError
from hansa.mqtt import packets
from hansa.mqtt.packet_writer import PacketWriter
from hansa.mqtt.types import Version

NAMES = (
    *("Mosquitto bridge", "relays in C", "relays in Python"),
    *("Hansa", "Hansa, no TLS", "NATS leaf nodes"),
)
HOPS = 5
LEAVES = 4
ROUNDS = 3
DELAYS_PER_S = 400
BURST = 20_000
BURST_PUBLISHERS = 10
BURST_QUIET_S = 2.0
RECOVERY_TIMEOUT_S = 60.0
PROBE_S = 0.005
GAP_S = 0.1
STEADY_S = 1.0
"""Publications arrive steadily if there was no longer gap for this long."""

PAIR: Links = [(0, 1)]
LINE: Links = [(place, place + 1) for place in range(HOPS)]
STAR_OUT: Links = [(0, leaf) for leaf in range(1, 1 + LEAVES)]
STAR_IN: Links = [(leaf, 0) for leaf in range(1, 1 + LEAVES)]

Table = dict[str, dict[str, float | str]]
"""By measure and system: a number, or why there is none."""

Measurement = Callable[[Peer], dict[str, float | str]]


def measure(seconds: float = 1.0) -> dict[str, object]:
    """All systems in one table: p2p, delay, fan-out, fan-in, shared, burst, CPU, recovery."""
    return asyncio.run(_measure(seconds))


async def _measure(seconds: float) -> dict[str, object]:
    table: Table = {}
    # Bridges and relays copy everything as far as there are links, so one hop needs its own pair.
    async with _running("line:2", PAIR, table) as peers:
        await _take_turns(peers, "p2p", lambda peer: _p2p(peer, seconds), table)
        await _take_turns(peers, "delay", lambda peer: _delay(peer, 1, seconds), table)
        await _take_turns(peers, "shared", lambda peer: _shared(peer, seconds), table)
        await _take_turns(peers, "burst", lambda peer: _burst(peer, 0), table)
        await _take_turns(peers, "burst", lambda peer: _burst(peer, 1), table)
    async with _running(f"line:{HOPS + 1}", LINE, table) as peers:
        await _take_turns(peers, "delay", lambda peer: _delay(peer, HOPS, seconds), table)
        await _recoveries(peers, table)
    async with _running(f"star:{1 + LEAVES}", STAR_OUT, table) as peers:
        await _take_turns(peers, "fan-out", lambda peer: _fan_out(peer, seconds), table)
    async with _running(f"star:{1 + LEAVES}", STAR_IN, table) as peers:
        await _take_turns(peers, "fan-in", lambda peer: _fan_in(peer, seconds), table)
    return _report(table)


@asynccontextmanager
async def _running(topology: str, links: Links, table: Table) -> AsyncIterator[dict[str, Peer]]:
    """All systems that this machine can run; the table gets the reasons for the others."""
    found: dict[str, Peer] = {}
    try:
        for name in NAMES:
            peer = make_peer(name)
            try:
                await peer.start(topology, links)
            except (Unavailable, UsageError) as error:
                table.setdefault("skipped", {})[name] = str(error)
                await peer.stop()
            else:
                found[name] = peer
                table.setdefault("version", {})[name] = peer.version
                table.setdefault("protection of links", {})[name] = peer.link_security
        yield found
    finally:
        for peer in found.values():
            await peer.stop()


async def _take_turns(
    peers: dict[str, Peer], title: str, scenario: Measurement, table: Table
) -> None:
    """Measure every system ROUNDS times; keep the best round of each, and the most lost in one."""
    for _ in range(ROUNDS):
        for name, peer in peers.items():
            try:
                found = await asyncio.to_thread(scenario, peer)
            except (OSError, TimeoutError) as error:
                found = {f"{title} failed": str(error) or "timeout"}
            for measure_name, value in found.items():
                row = table.setdefault(measure_name, {})
                before = row.get(name, value)
                if isinstance(before, str) or isinstance(value, str):
                    row[name] = value
                else:
                    row[name] = _better(measure_name, before, value)


def _better(measure_name: str, one: float, other: float) -> float:
    """Return the value to show; of losses it is the worse."""
    is_larger = measure_name.endswith(("/s", "lost"))
    return max(one, other) if is_larger else min(one, other)


# -------------------------------------------------------------------- scenarios


def _p2p(peer: Peer, seconds: float) -> dict[str, float | str]:
    """One publisher, one subscriber, one hop; and what the processes cost."""
    pids = {
        f"{what} of the {side}": pid
        for place, side in enumerate(("publisher", "subscriber"))
        for what, pid in peer.pids(place).items()
        if (what, side) != ("relay out of it", "subscriber")
    }
    with open_load(peer.ports[0], [peer.ports[1]]) as load:
        meter = CpuMeter(pids)
        flow = load.flood(seconds)
    if not flow.arrived:
        raise TimeoutError("nothing arrived")
    spent = meter.micros(flow.arrived)
    return {
        "p2p, deliveries/s": flow.per_second,
        "p2p, lost": float(flow.lost),
        "p2p, CPU of all processes, us each": sum(spent.values()),
        "p2p, CPU of the busiest process, us each": max(spent.values()),
        "memory of the largest process, MB": max(map(_resident_mb, pids.values())),
        "memory of all processes of one hop, MB": sum(map(_resident_mb, pids.values())),
    }


def _delay(peer: Peer, hops: int, seconds: float) -> dict[str, float | str]:
    count = max(40, round(seconds * DELAYS_PER_S))
    with open_load(peer.ports[0], [peer.ports[hops]]) as load:
        delays = sorted(load.delays(count, DELAYS_PER_S)[count // 10 :])
    return {
        f"delay over {hops}, median ms": statistics.median(delays),
        f"delay over {hops}, 99 % ms": delays[int(0.99 * len(delays))],
    }


def _fan_out(peer: Peer, seconds: float) -> dict[str, float | str]:
    with open_load(peer.ports[0], peer.ports[1:]) as load:
        flow = load.flood(seconds)
    return {
        f"fan-out to {LEAVES}, deliveries/s": flow.per_second,
        "fan-out, lost": float(flow.lost),
    }


def _fan_in(peer: Peer, seconds: float) -> dict[str, float | str]:
    with open_load(peer.ports[1], [peer.ports[0]], sources=peer.ports[2:]) as load:
        flow = load.flood(seconds)
    return {f"fan-in of {LEAVES}, deliveries/s": flow.per_second, "fan-in, lost": float(flow.lost)}


def _shared(peer: Peer, seconds: float) -> dict[str, float | str]:
    """Two subscribers at the second broker share one subscription."""
    if not peer.shares:
        return {"shared by 2, deliveries/s": "not supported"}
    with open_load(peer.ports[0], [peer.ports[1]] * 2, share="bench") as load:
        flow = load.flood(seconds)
    return {"shared by 2, deliveries/s": flow.per_second, "shared, lost": float(flow.lost)}


def _burst(peer: Peer, qos: int) -> dict[str, float | str]:
    """Ten publishers write 20,000 publications at once, without flow control."""
    if qos and not peer.guarantees:
        return {f"burst of {BURST:,} at QoS 1, lost": "QoS 0 only"}
    subscriber = Client(peer.ports[1], f"burst-{peer.ports[1]}", TOPIC, qos)
    publishers = [
        Client(peer.ports[0], f"burst-{number}-{peer.ports[0]}")
        for number in range(BURST_PUBLISHERS)
    ]
    try:
        _wait_for_path(publishers[0], subscriber)
        arrived = _count_arrivals(publishers, subscriber, qos)
    finally:
        for client in (subscriber, *publishers):
            client.socket.close()
    return {f"burst of {BURST:,} at QoS {qos}, lost": float(BURST - arrived)}


def _wait_for_path(publisher: Client, subscriber: Client) -> None:
    """Publish at QoS 0 until it arrives."""
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    subscriber.socket.settimeout(PROBE_S)
    while True:
        publisher.socket.sendall(publication(bytes(PAYLOAD_BYTES)))
        try:
            subscriber.socket.recv(1 << 16)
            break
        except TimeoutError:
            if time.monotonic() > deadline:
                raise
    subscriber.drain()


def _count_arrivals(publishers: list[Client], subscriber: Client, qos: int) -> int:
    """Publish all at once; return how many different ones arrive until it is quiet."""
    each = BURST // len(publishers)
    writers = [
        threading.Thread(
            target=client.socket.sendall,
            args=(b"".join(_numbered(number * each + n, n + 1, qos) for n in range(each)),),
        )
        for number, client in enumerate(publishers)
    ]
    for writer in writers:
        writer.start()
    found: set[bytes] = set()
    size = PACKET_BYTES + (2 if qos else 0)
    data = b""
    subscriber.socket.settimeout(BURST_QUIET_S)
    with suppress(TimeoutError):
        while len(found) < BURST:
            data += subscriber.socket.recv(1 << 16)
            whole = len(data) // size * size
            arrived = [data[at : at + size] for at in range(0, whole, size)]
            data = data[whole:]
            found.update(packet[-PAYLOAD_BYTES:][:8] for packet in arrived)
            if qos:
                ids = (packet[-PAYLOAD_BYTES - 2 : -PAYLOAD_BYTES] for packet in arrived)
                subscriber.socket.sendall(b"".join(b"\x40\x02" + number for number in ids))
    for writer in writers:
        writer.join()
    return len(found)


def _numbered(number: int, packet_id: int, qos: int) -> bytes:
    payload = number.to_bytes(8, "big") + bytes(PAYLOAD_BYTES - 8)
    packet = packets.PublishPacket(TOPIC, payload, qos, packet_id=packet_id if qos else 0)
    return PacketWriter(Version.V311).encode(packet)


async def _recoveries(peers: dict[str, Peer], table: Table) -> None:
    """Kill what forwards in the middle of two hops; how long publications are interrupted."""
    row = table.setdefault("interruption after kill -9, s", {})
    for name, peer in peers.items():
        try:
            row[name] = await _recovery(peer)
        except (OSError, TimeoutError, UsageError, Unavailable) as error:
            row[name] = f"failed: {error}"


async def _recovery(peer: Peer) -> float:
    restarted = threading.Event()
    with open_load(peer.ports[0], [peer.ports[2]]) as load:
        watching = asyncio.create_task(asyncio.to_thread(_longest_gap, load, restarted))
        await peer.kill(1)
        restarted.set()
        return await watching


def _longest_gap(load: Load, restarted: threading.Event) -> float:
    """Publish all the time until publications have arrived steadily since the restart; return the
    longest time without an arrival."""
    connection = load.subscribers[0].socket
    connection.settimeout(PROBE_S)
    last = time.monotonic()
    deadline, longest, steady_from = last + RECOVERY_TIMEOUT_S, 0.0, 0.0
    while time.monotonic() < deadline:
        load.publisher.socket.sendall(publication(bytes(64)))
        try:
            connection.recv(1 << 16)
        except TimeoutError:
            continue
        now = time.monotonic()
        longest = max(longest, now - last)
        if now - last > GAP_S or not restarted.is_set():
            steady_from = now
        last = now
        if now - steady_from > STEADY_S:
            return longest
        time.sleep(PROBE_S)
    raise TimeoutError(f"no steady flow {RECOVERY_TIMEOUT_S:.0f} s after the kill")


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


# -------------------------------------------------------------------- the table


def _report(table: Table) -> dict[str, object]:
    text = f"best of {ROUNDS} rounds by turns, most of losses"
    say("publications", f"{PAYLOAD_BYTES} B, QoS 0 if not stated; {text}")
    say("", " ".join(f"{name:>17}" for name in NAMES))
    for measure_name, row in table.items():
        if measure_name != "skipped":
            say(measure_name, " ".join(f"{_cell(row.get(name)):>17}" for name in NAMES))
    for name, reason in table.get("skipped", {}).items():
        say(f"{name}: skipped", str(reason))
    return {
        measure_name: {
            name: value if isinstance(value, str) else round(value, 4)
            for name, value in row.items()
        }
        for measure_name, row in table.items()
    }


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value if len(value) <= 17 else "failed"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
