"""Alarms: active until they are over, counted each time that they say something new."""

import asyncio

from hansa.agent.alarms import Alarms


def test_an_alarm_counts_each_time_that_it_says_something_new():
    alarms = Alarms()
    tell = alarms.named("journal")
    for text in ("full", "full", "broken", "", "", "full"):
        tell(text)
    assert alarms.active == {"journal": "full"}
    assert alarms.counters == {"alarms: journal": 3}


def test_a_fault_is_an_alarm_and_a_connection_that_broke_is_none():
    alarms = Alarms()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(alarms.note_fault)
        broken = {"message": "read failed", "exception": OSError("no route"), "transport": None}
        loop.call_exception_handler(broken)
        assert not alarms.active
        loop.call_exception_handler({"message": "a fault", "exception": OSError("full")})

    asyncio.run(work())
    text = "a fault: OSError('full'); the log says where. Report it, and start the agent again"
    assert alarms.active == {"fault": text}


def test_an_alarm_says_each_thing_once():
    alarms = Alarms()
    for text in ("too large", "too deep", "too large", "too deep"):
        alarms.add("dropped", text)
    assert alarms.active == {"dropped": "too large; too deep"}
    assert alarms.counters == {"alarms: dropped": 2}
