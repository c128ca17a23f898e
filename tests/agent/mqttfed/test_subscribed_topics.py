"""Reference counts of subscribed topics."""

from hansa.agent.mqttfed import subscribed_topics as module
from hansa.agent.mqttfed.subscribed_topics import SubscribedTopics

PLAIN, SHARED = "federated/t", "$share/g/federated/t"


def test_topic_is_subscribed_until_its_last_filter_is_removed():
    wishes = SubscribedTopics()
    assert wishes.apply_change([PLAIN], []) == (("t",), ())
    assert wishes.apply_change([SHARED], []) == ((), ())
    assert wishes.apply_change([], [PLAIN]) == ((), ())
    assert wishes.apply_change([], [SHARED]) == ((), ("t",))


def test_other_topics_and_wildcards_are_ignored():
    wishes = SubscribedTopics()
    assert wishes.apply_change(["other/t", "federated/#", "federated/+/x"], []) == ((), ())
    assert wishes.unsupported_filters == {"federated/#", "federated/+/x"}
    assert wishes.apply_change([], ["other/t", "federated/#", "federated/+/x"]) == ((), ())
    assert wishes.unsupported_filters == set()


def test_repeated_filter_is_logged_once_and_memory_is_bounded(caplog, monkeypatch):
    monkeypatch.setattr(module, "LOGGED_MAX", 2)
    wishes = SubscribedTopics()

    def logged() -> int:  # other threads of this process may log as well
        return sum("filter not announced" in record.getMessage() for record in caplog.records)

    for level in "aaabba":
        wishes.apply_change([f"federated/{level}/#"], [])
        wishes.apply_change([], [f"federated/{level}/#"])
    assert logged() == 2
    wishes.apply_change(["federated/c/#", "federated/a/#"], [])
    assert logged() == 4  # logged again because the third had no room
