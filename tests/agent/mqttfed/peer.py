"""An independent implementation of an mqtt-fed federator.

It shares no code with Hansa: paho-mqtt speaks MQTT, and frames are parsed by hand. It follows the
description literally, with one lock around everything.
"""

import threading
import time
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt import enums, properties, subscribeoptions
from paho.mqtt.packettypes import PacketTypes

FIVE = enums.MQTTProtocolVersion.MQTTv5


def little(data: bytes, at: int, size: int = 4) -> int:
    return int.from_bytes(data[at : at + size], "little")


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


class Peer:
    """A node: its broker's port and its neighbours' ports by id."""

    def __init__(
        self, id_: int, port: int, neighbours: dict[int, int], interval: float, redundancy: int = 2
    ) -> None:
        self.id = id_
        self.interval = interval
        self.redundancy = redundancy
        self.topics: dict[str, dict[str, Any]] = {}
        self.lock = threading.RLock()
        self.stopping = threading.Event()
        self.neighbours = {n: self._client(p) for n, p in neighbours.items()}
        self.own = self._client(port)
        self.own.on_message = lambda *arguments: self._receive(
            arguments[2].topic, arguments[2].payload
        )
        options = subscribeoptions.SubscribeOptions(qos=2, noLocal=True)
        for kind in ("core_ann", "memb_ann", "routing", "beacon"):
            self.own.subscribe(f"federator/{kind}/#", options=options)
        self.own.subscribe("federated/#", options=options)
        self.thread = threading.Thread(target=self._announce)
        self.thread.start()

    def _client(self, port: int) -> paho.Client:
        made = paho.Client(enums.CallbackAPIVersion.VERSION2, protocol=FIVE)
        stated = properties.Properties(PacketTypes.CONNECT)
        made.connect("127.0.0.1", port, clean_start=True, properties=stated)
        made.loop_start()
        return made

    def close(self) -> None:
        self.stopping.set()
        self.thread.join()
        for client in (self.own, *self.neighbours.values()):
            client.disconnect()
            client.loop_stop()

    # ------------------------------------------------------------ what it knows

    def _topic(self, name: str) -> dict[str, Any]:
        fresh: dict[str, Any] = {
            "core": None,
            "seqn": 0,
            "dist": 0,
            "heard": 0.0,
            "parents": [],
            "notified": set(),
        }
        fresh |= {"children": {}, "beacon": 0.0, "seen": set(), "next": 0, "announced": 0.0}
        return self.topics.setdefault(name, fresh)

    def _has_core(self, topic: dict[str, Any]) -> bool:
        if topic["core"] == self.id:
            return self._is_interested(topic)
        return topic["core"] is not None and time.monotonic() < topic["heard"] + 3 * self.interval

    def _is_interested(self, topic: dict[str, Any]) -> bool:
        return bool(time.monotonic() < topic["beacon"] + 3 * self.interval)

    def core_of(self, name: str) -> int | None:
        with self.lock:
            topic = self._topic(name)
            return topic["core"] if self._has_core(topic) else None

    def parents_of(self, name: str) -> list[int]:
        with self.lock:
            return list(self._topic(name)["parents"])

    def children_of(self, name: str) -> list[int]:
        with self.lock:
            return sorted(self._topic(name)["children"])

    # ------------------------------------------------------------ what it does

    def _send(self, to: list[int], name: str, payload: bytes) -> None:
        for neighbour in to:
            if neighbour in self.neighbours:
                self.neighbours[neighbour].publish(name, payload, qos=2)

    def _announce(self) -> None:
        while not self.stopping.wait(self.interval / 10):
            with self.lock:
                now = time.monotonic()
                for name, topic in self.topics.items():
                    is_due = now - topic["announced"] >= self.interval
                    if topic["core"] == self.id and self._is_interested(topic) and is_due:
                        topic["announced"] = now
                        said = words(self.id, topic["seqn"], 0, self.id)
                        topic["seqn"] += 1
                        self._send([*self.neighbours], f"federator/core_ann/{name}", said)

    def _receive(self, name: str, payload: bytes) -> None:
        with self.lock:
            first, _, rest = name.partition("/")
            if first == "federated":
                self._published(rest, payload)
                return
            kind, _, topic = rest.partition("/")
            getattr(self, f"_{kind}")(topic, payload)

    def _beacon(self, name: str, _: bytes) -> None:
        topic = self._topic(name)
        topic["beacon"] = time.monotonic()
        if not self._has_core(topic) or topic["core"] is None:
            topic |= {
                "core": self.id,
                "seqn": 0,
                "parents": [],
                "notified": set(),
                "announced": 0.0,
            }
        else:
            self._answer(name, topic)

    def _answer(self, name: str, topic: dict[str, Any]) -> None:
        unnotified = [parent for parent in topic["parents"] if parent not in topic["notified"]]
        topic["notified"] |= set(unnotified)
        said = words(topic["core"], topic["seqn"], self.id)
        self._send(unnotified, f"federator/memb_ann/{name}", said)

    def _core_ann(self, name: str, payload: bytes) -> None:
        core, seqn, dist, sender = (little(payload, at) for at in (0, 4, 8, 12))
        if self.id in (core, sender):
            return
        topic, dist = self._topic(name), dist + 1
        if self._has_core(topic):
            if core > topic["core"]:
                return
            if core == topic["core"]:
                if seqn < topic["seqn"] or (seqn == topic["seqn"] and dist > topic["dist"]):
                    return
                if (seqn, dist) == (topic["seqn"], topic["dist"]):
                    topic["parents"] = sorted({*topic["parents"], sender})[: self.redundancy]
                    if self._is_interested(topic) or topic["notified"]:
                        self._answer(name, topic)
                    return
        if core != topic["core"]:
            topic["children"] = {}
        topic |= {"core": core, "seqn": seqn, "dist": dist, "parents": [sender], "notified": set()}
        topic["heard"] = time.monotonic()
        if self._is_interested(topic):
            self._answer(name, topic)
        onward = words(core, seqn, dist + 1, self.id)
        others = [each for each in self.neighbours if each != sender]
        self._send(others, f"federator/core_ann/{name}", onward)

    def _memb_ann(self, name: str, payload: bytes) -> None:
        core, seqn, sender = (little(payload, at) for at in (0, 4, 8))
        topic = self._topic(name)
        if core != topic["core"] or (core != self.id and seqn != topic["seqn"]):
            return
        topic["children"][sender] = time.monotonic()
        if core != self.id:
            self._answer(name, topic)

    def _routing(self, name: str, payload: bytes) -> None:
        origin, seqn, sender = (little(payload, at) for at in (0, 4, 8))
        size = little(payload, 12, 8)
        self._route(name, (origin, seqn), sender, payload[20 : 20 + size])

    def _published(self, name: str, payload: bytes) -> None:
        topic = self._topic(name)
        if self._has_core(topic):
            topic["next"] += 1
            self._route(name, (self.id, topic["next"] - 1), None, payload)

    def _route(self, name: str, id_: tuple[int, int], sender: int | None, payload: bytes) -> None:
        topic = self._topic(name)
        if id_ in topic["seen"]:
            return
        topic["seen"].add(id_)
        if sender is not None and self._is_interested(topic):
            self.own.publish(f"federated/{name}", payload, qos=2)
        if not self._has_core(topic):
            return
        now, lifetime = time.monotonic(), 3 * self.interval
        children = [child for child, at in topic["children"].items() if now < at + lifetime]
        targets = [target for target in {*topic["parents"], *children} if target != sender]
        said = words(*id_, self.id) + len(payload).to_bytes(8, "little") + payload
        self._send(targets, f"federator/routing/{name}", said)
