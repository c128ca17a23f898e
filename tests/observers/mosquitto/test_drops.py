"""Attribution of Mosquitto's dropped messages: which may be a loss of the agent."""

import pytest

from hansa.observers.base import BrokerDroppedPublications, ObserverOutput
from hansa.observers.mosquitto.drops import CLIENTS_MAX, DOCTOR_GRACE_S, DroppedMessageCounter
from hansa.observers.mosquitto.observer import MosquittoObserver

DROPPED = "$SYS/broker/publish/messages/dropped"
NOTICE = "$SYS/broker/log/N"
UPTIME = "$SYS/broker/uptime"


@pytest.fixture
def drops() -> DroppedMessageCounter:
    """State after the first connection of an agent."""
    made = DroppedMessageCounter()
    made.on_sample()
    return made


def test_messages_dropped_before_the_first_connection_of_an_agent_are_no_loss():
    drops = DroppedMessageCounter()
    assert drops.update_total(5) == 0
    drops.on_sample()
    assert drops.update_total(7) == 2


def test_restarted_broker_counts_from_0(drops):
    assert [drops.update_total(total) for total in (5, 5, 7, 3, 3)] == [5, 0, 2, 3, 0]


@pytest.mark.parametrize(("saved", "lost"), [(5, 3), (None, 8), ("x", 8)])
def test_messages_dropped_while_the_agent_was_away_are_reported(saved, lost):
    drops = DroppedMessageCounter()
    drops.restore(saved)
    assert drops.update_total(8) == lost
    assert drops.total == 8


def test_drops_caused_by_doctor_are_no_loss(drops):
    drops.on_client_named("hansa-doctor-1-away")
    assert drops.update_total(100) == 0
    drops.now += DOCTOR_GRACE_S - 1
    assert drops.update_total(200) == 0  # the count may arrive during the doctor's run
    drops.now += 1
    assert drops.update_total(201) == 1


def test_drops_with_doctor_and_too_many_clients_are_a_loss(drops):
    for number in range(CLIENTS_MAX + 1):
        drops.on_client_named(f"client-{number}")
    drops.on_client_named("hansa-doctor-1-away")
    assert drops.update_total(100) == 100


def test_observer_reads_drop_count_and_client_names_and_saves_count():
    observer = MosquittoObserver("hansa-0123-")

    def take(topic: str, payload: bytes) -> ObserverOutput:
        return observer.receive_publication(topic, payload, now=0.0)

    take(DROPPED, b"5")
    take(UPTIME, b"7 seconds")
    assert take(DROPPED, b"7").findings == (BrokerDroppedPublications(2, 7),)
    line = b"Outgoing messages are being dropped for client hansa-doctor-1-away."
    take(NOTICE, b"1794789623: " + line)
    assert take(DROPPED, b"207").findings == ()
    later = MosquittoObserver("hansa-0123-")
    later.restore(observer.snapshot(), now=0.0)
    assert later.receive_publication(DROPPED, b"207", now=0.0).findings == ()
    assert later.receive_publication(DROPPED, b"208", now=0.0).findings == (
        BrokerDroppedPublications(1, 208),
    )


@pytest.mark.parametrize(("had_session", "lost"), [(True, [5]), (False, [])])
def test_drops_without_snapshot_are_a_loss_only_after_earlier_connection(had_session, lost):
    observer = MosquittoObserver("hansa-0123-")
    if had_session:
        observer.on_snapshot_missing()
    findings = observer.receive_publication(DROPPED, b"5", now=0.0).findings
    assert findings == tuple(BrokerDroppedPublications(count, 5) for count in lost)
