"""Alarms are active until they are cleared, and counted each time they are raised."""

import asyncio

from hansa.agent.alarms import Alarms


def test_alarm_count_increases_each_time_it_is_raised():
    alarms = Alarms()
    set_alarm = alarms.setter("journal not writable")
    for text in ("full", "full", "broken", "", "", "full"):
        set_alarm(text)
    assert alarms.active == {"journal not writable": "full"}
    assert alarms.counters == {"alarms: journal not writable": 2}


def test_exception_raises_alarm_and_broken_connection_does_not():
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
    assert alarms.active == {"internal error": text}


def test_alarm_for_dropped_publications_lists_topics_within_limit():
    alarms = Alarms()
    for _ in range(2):
        alarms.add_dropped("too large", "", 0)
        for topic in ("a\nb", "x" * 100, "c", "d", "e"):
            alarms.add_dropped("refused", topic, 1)
    long = "x" * 80
    refused = rf"refused: 'a\nb' at QoS 1, '{long}'… at QoS 1, 'c' at QoS 1, other topics"
    assert alarms.active == {"publications dropped": f"too large; {refused}"}
    assert alarms.counters == {"alarms: publications dropped": 1}
