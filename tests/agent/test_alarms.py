"""Alarms: active until they are over, counted each time that they say something new."""

from hansa.agent.alarms import Alarms


def test_an_alarm_counts_each_time_that_it_says_something_new():
    alarms = Alarms()
    tell = alarms.named("journal")
    for text in ("full", "full", "broken", "", "", "full"):
        tell(text)
    assert alarms.active == {"journal": "full"}
    assert alarms.counters == {"alarms: journal": 3}
