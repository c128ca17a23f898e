import asyncio
import random
from typing import Any, cast

import pytest
from tests.agent.waiting import until

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.links.link_manager import Exchange
from hansa.agent.links.mqtt import Access
from hansa.agent.links.settings import LinkSettings

PLACE, OTHER = "127.0.0.1:1", "127.0.0.1:2"
"""Nobody listens there: every attempt is told."""


@pytest.mark.parametrize("configured", [True, False])
def test_what_is_configured_is_dialled_also_when_a_manager_wants_it_no_more(configured):
    async def scene() -> None:
        settings = LinkSettings(neighbours=(PLACE,) if configured else ())
        access = Access("links", BrokerAddress("127.0.0.1", 1), "us")
        exchange = Exchange(cast(Any, None), random.Random(1), settings, access)
        attempts: list[str] = []
        exchange.dial(lambda address, _: attempts.append(str(address)))
        for place in (PLACE, OTHER):
            exchange.keep(place, lambda address, _: attempts.append(str(address)))
        exchange.forget(f"tcp://{PLACE}")
        await until(lambda: attempts.count(OTHER) >= 2)
        assert (PLACE in attempts) is configured
        await exchange.stop()

    asyncio.run(scene())
