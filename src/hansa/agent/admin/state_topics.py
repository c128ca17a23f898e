"""The state of this agent, its links and all nodes as retained topics at its broker.

For people who monitor with MQTT; off unless `[broker] state_topics` names a prefix. The topics are
`PREFIX/ID/agent`, `PREFIX/ID/link/NODE` and `PREFIX/ID/node/NODE`, where ID is this node. A value
is published when it changes, and all of them after each connection. If the agent dies, the broker
publishes `offline` as the will of this client.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from hansa.agent.admin.status import format_node_id
from hansa.agent.admin.summary import StatusSources, readiness_problem
from hansa.agent.broker.connection import NamedConnectionFactory
from hansa.mqtt import effects, inputs, packets
from hansa.protocol.model import NodeId

CHECK_S = 0.25
"""Seconds between two looks for changes."""


class StateTopics:
    """Publishes the state while it runs."""

    def __init__(
        self, prefix: str, parts: StatusSources, make_connection: NamedConnectionFactory
    ) -> None:
        self._parts = parts
        self._prefix = f"{prefix}/{format_node_id(parts.driver.node.id)}"
        self._connection = make_connection("state", self._on_effect)
        self._connection.set_will(packets.Will(*self._offline(), retain=True))
        self._published: dict[str, bytes] = {}
        self._former_neighbours: dict[NodeId, None] = {}

    async def run(self) -> None:
        """Publish until cancelled, then `offline`."""
        self._connection.start()
        try:
            while True:
                if not self._connection.problem:
                    self._publish(self._state())
                await asyncio.sleep(CHECK_S)
        finally:
            self._publish(dict([self._offline()]))
            await self._connection.stop()

    def _on_effect(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.Connected):
            self._published.clear()  # the broker may have lost them

    def _publish(self, state: Mapping[str, bytes]) -> None:
        changed = [
            packets.PublishPacket(topic, payload, retain=True)
            for topic, payload in state.items()
            if self._published.get(topic) != payload
        ]
        self._published.update(state)
        if changed:
            self._connection.submit(inputs.Publish(changed))

    def _offline(self) -> tuple[str, bytes]:
        document = {"name": self._parts.name, "state": "offline"}
        return f"{self._prefix}/agent", msgspec.json.encode(document)

    def _state(self) -> dict[str, bytes]:
        """Return all topics; an empty payload deletes the topic of a node that was forgotten."""
        membership = self._parts.driver.node.membership
        problem = readiness_problem(self._parts)
        self._former_neighbours.update(dict.fromkeys(membership.neighbours))
        self._former_neighbours = {
            node: None for node in self._former_neighbours if node in membership.known
        }
        documents: dict[str, object] = {
            "agent": {
                "name": self._parts.name,
                "state": "ready" if not problem else "not ready",
                "problem": problem,
                "alarms": dict(self._parts.alarms.active),
            }
        }
        for node in self._former_neighbours:
            state = "up" if node in membership.neighbours else "down"
            documents[f"link/{format_node_id(node)}"] = self._describe(node, state)
        for node in membership.known:
            state = "reachable" if node in membership.reachable else "unreachable"
            documents[f"node/{format_node_id(node)}"] = self._describe(node, state)
        found = {
            f"{self._prefix}/{name}": msgspec.json.encode(document)
            for name, document in documents.items()
        }
        forgotten = {topic: b"" for topic in self._published if topic not in found}
        return forgotten | found

    def _describe(self, node: NodeId, state: str) -> dict[str, str]:
        return {"name": self._parts.driver.node.membership.known[node].name, "state": state}
