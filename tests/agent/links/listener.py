"""One end of links in tests, with a recording listener."""

from collections.abc import Callable
from typing import Generic, TypeVar

from tests.agent.waiting import until

from hansa.agent.links.link import Address, Link
from hansa.agent.links.mqtt import MqttLinks
from hansa.agent.links.tcp import TcpLinks
from hansa.agent.links.udp import UdpLinks

Links = TypeVar("Links", TcpLinks, UdpLinks, MqttLinks)


class RecordingListener:
    """Records link events. Unlike a node, it admits every connection."""

    def __init__(self, admits: bool = True) -> None:
        self._admits = admits
        self.opened: list[Link] = []
        self.frames: list[bytes] = []
        self.closed: list[str] = []
        self.offences: list[str] = []
        self.dropped: list[tuple[int, str]] = []

    def link_opened(self, link: Link) -> None:
        self.opened.append(link)
        if self._admits:
            link.admit()

    def frames_received(self, link: Link, frames: list[bytes]) -> None:
        self.frames += frames

    def publications_dropped(self, link: Link, count: int, reason: str) -> None:
        self.dropped.append((count, reason))

    def peer_misbehaved(self, link: Link, reason: str) -> None:
        self.offences.append(reason)

    def link_closed(self, link: Link, reason: str) -> None:
        self.closed.append(reason)

    async def close_links(self) -> None:
        for link in self.opened:
            link.close("test over")
        await until(lambda: len(self.closed) == len(self.opened), "all links closed")


class End(Generic[Links]):
    """One end: its links and their recorded events."""

    def __init__(self, make: Callable[[RecordingListener], Links]) -> None:
        self.listener = RecordingListener()
        self.links: Links = make(self.listener)
        self.failures: list[str] = []
        self.address = Address("127.0.0.1", 0)

    async def listen(self) -> None:
        if isinstance(self.links, MqttLinks):
            self.links.listen(self.note_failure)
        else:
            self.address = await self.links.listen(self.address)

    def note_failure(self, address: Address, reason: str) -> None:
        self.failures.append(reason)

    def dial(self, address: Address) -> None:
        self.links.dialler.dial(address, self.note_failure)

    async def stop(self) -> None:
        await self.links.stop()
        await self.listener.close_links()


async def join(server: End[Links], client: End[Links]) -> None:
    """Open a link dialled by the second end."""
    await server.listen()
    client.dial(server.address)
    await until(lambda: server.listener.opened and client.listener.opened, "link up")
