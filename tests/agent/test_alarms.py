"""Alarms: active until they are over, counted each time that they begin."""

import asyncio

from hansa.agent.alarms import Alarms


def test_an_alarm_counts_each_time_that_it_begins():
    alarms = Alarms()
    tell = alarms.setter("journal")
    for text in ("full", "full", "broken", "", "", "full"):
        tell(text)
    assert alarms.active == {"journal": "full"}
    assert alarms.counters == {"alarms: journal": 2}


def test_a_fault_is_an_alarm_and_a_connection_that_broke_is_none():
    alarms = Alarms()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(alarms.on_loop_exception)
        broken = {"message": "read failed", "exception": OSError("no route"), "transport": None}
        loop.call_exception_handler(broken)
        assert not alarms.active
        loop.call_exception_handler({"message": "a fault", "exception": OSError("full")})

    asyncio.run(work())
    text = "a fault: OSError: full; the log says where. Report it, and start the agent again"
    assert alarms.active == {"fault": text}


def test_the_alarm_about_dropped_publications_names_topics_and_stays_short():
    alarms = Alarms()
    for _ in range(2):
        alarms.add_dropped("too large", "", 0)
        for topic in ("a\nb", "x" * 100, "c", "d", "e"):
            alarms.add_dropped("refused", topic, 1)
    long = "x" * 80
    refused = rf"refused: 'a\nb' at QoS 1, '{long}'… at QoS 1, 'c' at QoS 1, other topics"
    assert alarms.active == {"dropped": f"too large; {refused}"}
    assert alarms.counters == {"alarms: dropped": 1}
