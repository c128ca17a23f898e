"""All links of one agent: listens and dials with the configured transports."""

import random
from collections import Counter
from itertools import count

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.links.admission import Admission
from hansa.agent.links.dialler import Dialler, OnDialFailed
from hansa.agent.links.link import Address, LinkListener
from hansa.agent.links.mqtt import MqttLinkAccess, MqttLinks
from hansa.agent.links.settings import LinkSettings, parse_neighbour
from hansa.agent.links.stream import DEFAULT_LIMITS, LinkLimits
from hansa.agent.links.tcp import TcpLinks
from hansa.agent.links.udp import UdpLinks


def own_link_address(settings: LinkSettings, own: BrokerAddress) -> str:
    """Return the address of this agent as neighbours would write it."""
    if settings.transport == "mqtt":
        return f"mqtt://{Address(own.host, own.port)}"
    return str(Address(settings.host, settings.port))


class LinkManager:
    """Opens and accepts links."""

    def __init__(
        self,
        listener: LinkListener,
        rng: random.Random,
        settings: LinkSettings,
        access: MqttLinkAccess,
        frame_bytes_max: int = DEFAULT_LIMITS.frame_bytes,
    ) -> None:
        """`access` is for links through brokers."""
        ids = count(1)
        limits = LinkLimits(settings.window_bytes, frame_bytes_max)
        self._settings = settings
        self._configured_addresses = {
            parse_neighbour(n, settings.transport) for n in settings.neighbours
        }
        self._admission = Admission()
        self._tcp = TcpLinks(listener, rng, ids, limits, self._admission)
        self._udp = UdpLinks(listener, rng, ids, self._admission)
        self._mqtt = MqttLinks(listener, rng, ids, access, limits, self._admission)
        self.address = own_link_address(settings, access.own_broker)
        """Address of this agent for neighbours."""

    @property
    def counters(self) -> Counter[str]:
        """Counters that belong to no single link."""
        return self._udp.counters + self._mqtt.counters + self._admission.counters

    async def listen(self, on_failed: OnDialFailed) -> None:
        """Accept links; raise OSError if the port is taken; `on_failed` gets later problems.

        Links through brokers need no port of the agent.
        """
        if self._settings.transport == "mqtt":
            self._mqtt.listen(on_failed)
            return
        address = await self._tcp.listen(Address(self._settings.host, self._settings.port))
        if self._settings.transport == "udp":
            await self._udp.listen(address)
        self.address = str(address)

    def dial_configured(self, on_failed: OnDialFailed) -> None:
        """Keep a link to every configured neighbour; `on_failed` gets failed attempts."""
        for text in self._settings.neighbours:
            self.keep_dialling(text, on_failed)

    def keep_dialling(self, text: str, on_failed: OnDialFailed) -> None:
        """Keep a link to an address; raise UsageError if it is invalid."""
        dialler, address = self._dialler_for(text)
        dialler.dial(address, on_failed)

    def stop_dialling(self, text: str) -> None:
        """Stop dialling an address unless it is configured; the owner closes an open link."""
        if parse_neighbour(text, self._settings.transport) not in self._configured_addresses:
            dialler, address = self._dialler_for(text)
            dialler.stop_dialling(address)

    def dial_once(self, text: str, on_failed: OnDialFailed) -> None:
        """Dial an address once; raise UsageError if it is invalid."""
        dialler, address = self._dialler_for(text)
        dialler.dial_once(address, on_failed)

    def _dialler_for(self, text: str) -> tuple[Dialler, Address]:
        transport, address = parse_neighbour(text, self._settings.transport)
        kinds = {"tcp": self._tcp.dialler, "udp": self._udp.dialler, "mqtt": self._mqtt.dialler}
        return kinds[transport], address

    async def stop(self) -> None:
        """Stop listening and dialling. Owners close open links."""
        for links in (self._tcp, self._udp, self._mqtt):
            await links.stop()
