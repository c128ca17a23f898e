"""Which reports raise an alarm, and what its text says."""

from hansa.agent.alarm_rules import ID_CONFLICT, NO_CORE, AlarmRules
from hansa.agent.alarms import Alarms
from hansa.agent.broker.connection import LOGIN_REFUSED
from hansa.agent.withheld_monitor import SLOT_S, SLOTS_MIN
from hansa.observers.base import BrokerDroppedPublications
from hansa.protocol.effects import Ignored, IncarnationRaised, Repaired
from hansa.protocol.model import NodeId


def test_refused_filters_name_every_exceeded_setting():
    alarms = Alarms()
    rules = AlarmRules(alarms, (), str)
    rules.on_notification(Ignored("another reason"))
    assert alarms.active == {}
    rules.on_notification(Ignored("filters_per_node_max"))
    rules.on_notification(Ignored("filters_max"))
    beginning = "filters beyond filters_max (of all other nodes together), filters_per_node_max"
    assert alarms.active["filters refused"].startswith(beginning)


def test_id_conflict_and_dropped_messages_raise_alarms():
    alarms = Alarms()
    rules = AlarmRules(alarms, (), str)
    rules.on_notification(IncarnationRaised(2))
    rules.on_finding(BrokerDroppedPublications(3, 5))
    assert alarms.active["incarnation raised"] == ID_CONFLICT
    assert "it has dropped 5 messages" in alarms.active["broker dropped messages"]


def test_incomplete_observer_says_the_consequence_until_it_is_complete():
    alarms = Alarms()
    AlarmRules(alarms, ("plant/#", "#"), str).on_observer_incomplete("no log")
    expected = "no log; meanwhile the agent asks other brokers for plant/#, #"
    assert alarms.active == {"observer incomplete": expected}
    AlarmRules(alarms, (), str).on_observer_incomplete("no log")
    expected = "no log; meanwhile the agent asks for nothing, and clients may miss messages"
    assert alarms.active == {"observer incomplete": expected}
    AlarmRules(alarms, (), str).on_observer_incomplete("")
    assert alarms.active == {}


def test_refused_login_is_an_alarm_until_the_broker_accepts_the_agent():
    alarms = Alarms()
    rules = AlarmRules(alarms, (), str)
    rules.on_broker_status("connection refused")
    assert alarms.active == {}
    rules.on_broker_status(f"{LOGIN_REFUSED} (5)")
    rules.on_broker_status("connection refused")
    assert alarms.active == {"broker login refused": f"{LOGIN_REFUSED} (5)"}
    rules.on_broker_status("")
    assert alarms.active == {}


def test_repairs_while_the_own_disk_or_broker_fails_are_expected():
    now = 0.0
    alarms = Alarms()
    rules = AlarmRules(alarms, (), str, lambda: now)
    for fail in (
        lambda: alarms.set("inbox not writable", "no space"),
        lambda: alarms.set("inbox not writable", ""),
        lambda: rules.on_broker_status("connection refused"),
    ):
        fail()
        for _ in range(2):
            now += SLOT_S
            rules.on_notification(Repaired(NodeId(1), 1))
    assert "publications withheld" not in alarms.active
    for _ in range(SLOTS_MIN):
        now += SLOT_S
        rules.on_notification(Repaired(NodeId(1), 1))
    assert "publications withheld" in alarms.active


def test_missing_core_is_an_alarm_at_the_second_check_until_there_is_one():
    answers = iter((False, False, False, True))
    alarms = Alarms()
    rules = AlarmRules(alarms, (), str, has_core=lambda: next(answers))
    for is_raised in (False, True, True, False):
        rules.check_cores()
        assert alarms.active == ({"no core": NO_CORE} if is_raised else {})
