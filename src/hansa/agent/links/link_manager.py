"""All links of one agent: listens and dials with the configured transports."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import count

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.links.admission import Admission, OnUnauthenticated, ignore_peer
from hansa.agent.links.broker_port import BrokerPortCheck
from hansa.agent.links.dialler import Dialler, OnDialFailed
from hansa.agent.links.link import Address, LinkListener
from hansa.agent.links.mqtt import MqttLinkAccess, MqttLinks
from hansa.agent.links.security import LinkSecurity
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
        security: LinkSecurity | None = None,
    ) -> None:
        """`access` is for links through brokers. Without `security` links are neither
        authenticated nor encrypted."""
        self.security = security
        ids = count(1)
        limits = LinkLimits(settings.window_bytes, frame_bytes_max)
        self._settings = settings
        self._configured_addresses = {
            parse_neighbour(n, settings.transport) for n in settings.neighbours
        }
        self._admission = Admission(security)
        self._tcp = TcpLinks(listener, rng, ids, limits, self._admission)
        self._broker_ports = BrokerPortCheck()
        self._tcp.dialler.on_not_linked = self._broker_ports.note_failure
        self._udp = UdpLinks(listener, rng, ids, self._admission)
        self._mqtt = MqttLinks(listener, rng, ids, access, limits, self._admission)
        self.address = own_link_address(settings, access.own_broker)
        """Address of this agent for neighbours."""

    @property
    def counters(self) -> Counter[str]:
        """Counters that belong to no single link."""
        return self._udp.counters + self._mqtt.counters + self._admission.counters

    def security_status(self) -> dict[str, object] | None:
        """Return what /status shows of the certificate, None without one."""
        return None if self.security is None else self.security.status()

    async def listen(
        self,
        on_failed: OnDialFailed,
        on_unauthenticated: OnUnauthenticated = ignore_peer,
        on_dialled_refused: OnUnauthenticated = ignore_peer,
    ) -> None:
        """Accept links; raise OSError if the port is taken; `on_failed` gets later problems,
        `on_unauthenticated` the peers that could not prove to be members, `on_dialled_refused`
        dialled ones that could not, or that refused this node.

        Links through brokers need no port of the agent.
        """
        self._admission.on_unauthenticated = on_unauthenticated
        self._admission.on_dialled_refused = on_dialled_refused
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

    async def check_broker_ports(self, set_alarm: Callable[[str], None]) -> None:
        """Raise an alarm while a dialled address is the port of a broker, until cancelled."""
        await self._broker_ports.run(set_alarm)

    @property
    def transport(self) -> str:
        """The transport of addresses that name none."""
        return self._settings.transport

    def is_configured(self, text: str) -> bool:
        """Whether an address is one of `[link] neighbours`; raise UsageError if it is invalid."""
        return parse_neighbour(text, self._settings.transport) in self._configured_addresses

    def stop_dialling(self, text: str) -> bool:
        """Stop dialling an address unless it is configured; return whether it was dialled. The
        owner closes an open link."""
        if self.is_configured(text):
            return False
        dialler, address = self._dialler_for(text)
        return dialler.stop_dialling(address)

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
