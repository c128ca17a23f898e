"""All links of one agent, of whatever kind: who listens where, who is dialled how."""

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
    """Return where neighbours find us, as they would write it."""
    if settings.transport == "mqtt":
        return f"mqtt://{Address(own.host, own.port)}"
    return str(Address(settings.host, settings.port))


class LinkManager:
    """Opens links and lets others open them, for as long as it runs."""

    def __init__(
        self,
        listener: LinkListener,
        rng: random.Random,
        settings: LinkSettings,
        access: MqttLinkAccess,
        frame_bytes_max: int = DEFAULT_LIMITS.frame_bytes,
    ) -> None:
        """Prepare; `access` is for links through brokers."""
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
        """Where neighbours find us."""

    @property
    def counters(self) -> Counter[str]:
        """What happened that no link knows of."""
        return self._udp.counters + self._mqtt.counters + self._admission.counters

    async def listen(self, on_failed: OnDialFailed) -> None:
        """Take links; raise OSError if there is no port, and tell `failed` what goes wrong later.

        Links through brokers need no port of ours: none is opened for them.
        """
        if self._settings.transport == "mqtt":
            self._mqtt.listen(on_failed)
            return
        address = await self._tcp.listen(Address(self._settings.host, self._settings.port))
        if self._settings.transport == "udp":
            await self._udp.listen(address)
        self.address = str(address)

    def dial_configured(self, on_failed: OnDialFailed) -> None:
        """Keep a link to every neighbour that is configured; `failed` is told what is in vain."""
        for text in self._settings.neighbours:
            self.keep_dialling(text, on_failed)

    def keep_dialling(self, text: str, on_failed: OnDialFailed) -> None:
        """Keep a link to an address; raise UsageError if it is none."""
        dialler, address = self._dialler_for(text)
        dialler.dial(address, on_failed)

    def stop_dialling(self, text: str) -> None:
        """Keep no link to an address any more, unless it is configured; one that stands is closed
        by its owner."""
        if parse_neighbour(text, self._settings.transport) not in self._configured_addresses:
            dialler, address = self._dialler_for(text)
            dialler.stop_dialling(address)

    def dial_once(self, text: str, on_failed: OnDialFailed) -> None:
        """Dial an address once; raise UsageError if it is none."""
        dialler, address = self._dialler_for(text)
        dialler.dial_once(address, on_failed)

    def _dialler_for(self, text: str) -> tuple[Dialler, Address]:
        transport, address = parse_neighbour(text, self._settings.transport)
        kinds = {"tcp": self._tcp.dialler, "udp": self._udp.dialler, "mqtt": self._mqtt.dialler}
        return kinds[transport], address

    async def stop(self) -> None:
        """Listen and dial no more. Links that stand are closed by their owner."""
        for links in (self._tcp, self._udp, self._mqtt):
            await links.stop()
