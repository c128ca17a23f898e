import asyncio
import random
from typing import Any, cast

import pytest
from tests.agent.waiting import until

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.links.link_manager import LinkManager
from hansa.agent.links.mqtt import MqttLinkAccess
from hansa.agent.links.settings import LinkSettings

PLACE, OTHER = "127.0.0.1:1", "127.0.0.1:2"
"""No listener at this address: every attempt is reported."""


@pytest.mark.parametrize("configured", [True, False])
def test_configured_neighbour_is_dialled_even_if_the_manager_removes_it(configured):
    async def scene() -> None:
        settings = LinkSettings(neighbours=(PLACE,) if configured else ())
        access = MqttLinkAccess("links", BrokerAddress("127.0.0.1", 1), "us")
        exchange = LinkManager(cast(Any, None), random.Random(1), settings, access)
        attempts: list[str] = []
        exchange.dial_configured(lambda address, _: attempts.append(str(address)))
        for place in (PLACE, OTHER):
            exchange.keep_dialling(place, lambda address, _: attempts.append(str(address)))
        exchange.stop_dialling(f"tcp://{PLACE}")
        await until(lambda: attempts.count(OTHER) >= 2)
        assert (PLACE in attempts) is configured
        await exchange.stop()

    asyncio.run(scene())
