"""Changes that an operator makes through the HTTP endpoints: links of this agent, and leaving.

Only this agent changes, never another one over the overlay. The requests are commands: they need
the scope operate.
"""

import asyncio
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from hansa.agent.admin.server import HttpResponse, json_response
from hansa.agent.admin.summary import StatusSources
from hansa.agent.links.settings import parse_neighbour
from hansa.errors import UsageError
from hansa.protocol.membership.records import InterestRecord

LEAVE_TIMEOUT_S = 20.0
"""Longest wait for the withdrawal of the interest: other nodes must have the newest one first."""

POLL_S = 0.05

STOP_DELAY_S = 0.3
"""Seconds for the last records to reach the neighbours."""


class AgentActions:
    """Performs the changes."""

    def __init__(self, parts: StatusSources, request_stop: Callable[[], None]) -> None:
        self._parts = parts
        self._request_stop = request_stop
        self._is_leaving = False

    async def change_links(self, path: str, query: str, headers: Mapping[str, str]) -> HttpResponse:
        """Handle `POST /links?add=ADDRESS` and `?rm=ADDRESS`."""
        given = parse_qs(query)
        try:
            match [(name, value) for name, values in given.items() for value in values]:
                case [("add", address)]:
                    return json_response({"done": self._add_link(address)})
                case [("rm", address)]:
                    return json_response({"done": self._remove_link(address)})
                case _:
                    return json_response({"error": "give one address, as add or rm"}, 400)
        except UsageError as error:
            return json_response({"error": str(error)}, 400)

    def _add_link(self, address: str) -> str:
        self._parts.link_manager.keep_dialling(address, self._parts.event_log.log_dial_failed)
        return (
            f"{self._parts.name} dials {address} from now on, until it stops; `hansa link ls` lists"
            " the link once it is up, the log of the agent says why it is not"
        )

    def _remove_link(self, address: str) -> str:
        manager = self._parts.link_manager
        if manager.is_configured(address):
            raise UsageError(
                f"{address} is one of [link] neighbours of {self._parts.name}: remove it there, and"
                " restart the agent"
            )
        was_dialled = manager.stop_dialling(address)
        dialled = parse_neighbour(address, manager.transport)[1]
        open_links = self._parts.driver.links.values()
        links = [each for each in open_links if each.dialled_address == dialled]
        for link in links:
            link.close("removed by the operator")
        if not was_dialled and not links:
            raise UsageError(
                f"{self._parts.name} does not dial {address}: a link is removed at the agent that"
                " dials, with the address that was added there"
            )
        done = f"{self._parts.name} no longer dials {address}"
        return done if links else f"{done}; there was no open link to it"

    async def leave(self, path: str, query: str, headers: Mapping[str, str]) -> HttpResponse:
        """Handle `POST /leave?node=NAME`: withdraw the interest, then stop."""
        parts, node = self._parts, self._parts.driver.node
        given = parse_qs(query)
        if given.get("node") not in ([parts.name], [f"{node.id:016x}"]):
            text = f"only this agent can leave here, and it is {parts.name}: "
            text += "name the other one with --agent"
            return json_response({"error": text}, 400)
        pending = sum(node.delivery.pending.values())
        if pending and "force" not in given:
            text = f"{pending} publications of QoS 1 and 2 are pending for other nodes: wait, or"
            return json_response({"error": f"{text} use --force; they are sent if it returns"}, 409)
        if self._is_leaving:
            return json_response({"error": "it is leaving already"}, 409)
        self._is_leaving = True
        parts.interest_reporter.withdraw(
            (*parts.observer_client.subscribed_filters(), *parts.observer_client.wide)
        )
        deadline = asyncio.get_running_loop().time() + LEAVE_TIMEOUT_S
        while self._is_announced() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(POLL_S)
        is_withdrawn = not self._is_announced()
        asyncio.get_running_loop().call_later(STOP_DELAY_S, self._request_stop)
        return json_response({"name": parts.name, "withdrawn": is_withdrawn})

    def _is_announced(self) -> bool:
        node = self._parts.driver.node
        records = node.membership.records_of(node.id)
        return any(isinstance(each, InterestRecord) and each.added for each in records)
