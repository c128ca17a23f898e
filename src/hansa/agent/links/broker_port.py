"""Finds dialled addresses that are the port of an MQTT broker, a frequent mistake.

A broker closes the connection of an agent without a word, as a failing network does. So an address
that was dialled without success is asked whether it speaks MQTT. The alarm ends when it no longer
does, or is no longer dialled.
"""

import asyncio
import logging
from collections.abc import Callable

from hansa.agent.links.link import Address

log = logging.getLogger("hansa.agent")

CHECK_S = 5.0
"""Seconds between two checks of all addresses."""

FAILED_S = 30.0
"""Seconds for which a failed attempt to link makes an address worth a check: several times the
longest pause between two attempts."""

ADDRESSES_MAX = 64
"""Addresses that are checked; of more, the oldest ones are not."""

ANSWER_TIMEOUT_S = 2.0

_CONNECT = bytes.fromhex("100c00044d5154540402003c0000")
"""CONNECT of MQTT 3.1.1 with a clean session and without a client id."""

_CONNACK = b"\x20"


async def speaks_mqtt(address: Address) -> bool:
    """Whether a broker answers at an address."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            try:
                writer.write(_CONNECT)
                return await reader.read(1) == _CONNACK
            finally:
                writer.close()
    except (OSError, TimeoutError, UnicodeError):
        return False


class BrokerPortCheck:
    """Checks the addresses to which no link came about."""

    def __init__(self) -> None:
        self._failed_at: dict[Address, float] = {}
        self._found: tuple[Address, ...] = ()

    def note_failure(self, address: Address) -> None:
        """An attempt to link to an address has failed."""
        self._failed_at.pop(address, None)
        self._failed_at[address] = asyncio.get_running_loop().time()
        if len(self._failed_at) > ADDRESSES_MAX:
            del self._failed_at[next(iter(self._failed_at))]

    async def run(self, set_alarm: Callable[[str], None]) -> None:
        """Check until cancelled; `set_alarm` gets the text, empty if all is well."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check(set_alarm)

    async def check(self, set_alarm: Callable[[str], None]) -> None:
        """Check all addresses once."""
        since = asyncio.get_running_loop().time() - FAILED_S
        self._failed_at = {a: at for a, at in self._failed_at.items() if at >= since}
        addresses = list(self._failed_at)
        answers = await asyncio.gather(*map(speaks_mqtt, addresses))
        found = tuple(a for a, is_broker in zip(addresses, answers, strict=True) if is_broker)
        for address in found:
            if address not in self._found:
                log.error("neighbour is an MQTT broker, not an agent address=%s", address)
        if found != self._found:
            self._found = found
            set_alarm(_describe(found))


def _describe(found: tuple[Address, ...]) -> str:
    if not found:
        return ""
    which = ", ".join(map(str, found))
    return (
        f"{which}: an MQTT broker answers there, not an agent; write the port of the agent's links"
        " into [link] neighbours, usually 10500 ([link] port of the other agent)"
    )
