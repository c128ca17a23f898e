"""Injection: handshakes, restarts, session loss, full inbox, refusals."""

import time

import pytest
from tests.agent.delivery.incarnation import ME, OTHER, YOU, Incarnation, packet, run
from tests.agent.waiting import until

from hansa.agent.delivery.inbox_journal import (
    PUBLISH_PACKET_IDS,
    REDELIVERED_PROPERTY,
    InboxJournal,
)
from hansa.errors import JournalUnusable
from hansa.journal.records import InjectionCompletedRecord
from hansa.journal.settings import JournalSettings
from hansa.journal.writer import JournalWriter
from hansa.mqtt.packets import (
    PubAckPacket,
    PubCompPacket,
    PublishPacket,
    PubRecPacket,
    PubRelPacket,
)
from hansa.mqtt.properties import Property, encode_properties, message_expiry
from hansa.protocol.effects import Gap
from hansa.protocol.events import InboxCommitted
from hansa.protocol.model import Publication


def test_qos_2_handshake(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1)
        assert not agent.sent and not agent.committed  # nothing is sent before it is durable
        await agent.expect_sent(packet(1))
        assert agent.committed == [InboxCommitted(YOU, 8, 1)]
        agent.injection.on_handshake_steps([PubRecPacket(2)])
        assert agent.sent == []
        await agent.expect_sent(PubRelPacket(2))
        agent.injection.on_handshake_steps([PubCompPacket(2)])
        assert agent.inbox.entries == {}
        await agent.injection.stop()

    run(work)


def test_qos_1_handshake(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1, qos=1)
        await agent.expect_sent(packet(1, qos=1))
        agent.injection.on_handshake_steps([PubAckPacket(2)])
        assert agent.inbox.entries == {}
        await agent.injection.stop()

    run(work)


def test_publications_wait_in_inbox_without_broker(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.deliver(1, 2)
        agent.deliver(1, origin=OTHER)
        await until(lambda: len(agent.committed) == 2, "stored")
        assert agent.committed == [InboxCommitted(YOU, 8, 2), InboxCommitted(OTHER, 8, 1)]
        agent.connect()
        await agent.expect_sent(packet(1), packet(2), packet(3, b"1"))
        await agent.injection.stop()

    run(work)


def test_time_in_the_inbox_counts_towards_the_expiry(tmp_path, monkeypatch):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        now = time.time_ns()
        for number, seconds in enumerate((4, 5, 60), start=1):
            raw = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, seconds),))
            agent.injection.add_publications(
                [Publication(YOU, 8, number, 1, "a", b"%d" % number, properties=raw)]
            )
        await until(lambda: len(agent.committed) == 1, "stored")
        monkeypatch.setattr(time, "time_ns", lambda: now + 5_900_000_000)
        agent.connect()
        await until(lambda: agent.sent, "published")
        (said,) = [each for each in agent.sent if isinstance(each, PublishPacket)]
        assert (said.payload, message_expiry(said.properties)) == (b"3", 55)
        assert agent.injection.counters["dropped: expired"] == 2
        assert len(agent.inbox.entries) == 1
        await agent.injection.stop()

    run(work)


def test_restart_resumes_every_handshake(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1, 2, 3)
        await agent.expect_sent(packet(1), packet(2), packet(3))
        agent.injection.on_handshake_steps([PubRecPacket(2), PubRecPacket(3)])
        await agent.expect_sent(PubRelPacket(2), PubRelPacket(3))
        agent.injection.on_handshake_steps([PubCompPacket(2)])
        agent.inbox.writer.commit()
        agent.crash()
        agent = Incarnation(tmp_path)
        assert agent.inbox.accepted == {YOU: (8, 3)}
        agent.connect()
        await agent.expect_sent(PubRelPacket(3), packet(3, dup=True))
        agent.injection.on_handshake_steps([PubRecPacket(4)])
        await agent.expect_sent(PubRelPacket(4))
        agent.injection.on_handshake_steps([PubCompPacket(3), PubCompPacket(4)])
        agent.deliver(4)
        await agent.expect_sent(packet(4))
        await agent.injection.stop()

    run(work)


def test_publication_not_durably_accepted_is_sent_again(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1)
        await agent.expect_sent(packet(1))
        agent.inbox.mark_accepted(agent.inbox.entries[1])
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.connect()
        await agent.expect_sent(packet(1, dup=True))
        await agent.injection.stop()

    run(work)


def test_reconnect_after_pubrec_sends_pubrel(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1, 2)
        await agent.expect_sent(packet(1), packet(2))
        agent.injection.on_handshake_steps([PubRecPacket(2)])
        agent.injection.on_disconnected()
        agent.connect()
        await until(lambda: len(agent.sent) == 2, "both")
        assert set(agent.sent) == {PubRelPacket(2), packet(2, dup=True)}
        await agent.injection.stop()

    run(work)


def test_in_flight_limit_is_smaller_of_setting_and_receive_maximum(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path, in_flight_max=3)
        agent.connect(receive_maximum=2)
        agent.deliver(1, 2, 3, 4, qos=1)
        await agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
        agent.injection.on_handshake_steps([PubAckPacket(2)])
        assert agent.sent == []  # a crash now would duplicate the first one
        await agent.expect_sent(packet(3, qos=1))
        agent.injection.on_disconnected()
        agent.connect(receive_maximum=9)
        await agent.expect_sent(*(packet(n, qos=1, dup=n < 4) for n in (2, 3, 4)))
        await agent.injection.stop()

    run(work)


def test_packet_ids_wrap_around(tmp_path):
    async def work() -> None:
        with JournalWriter(tmp_path, ME, 5) as writer:
            writer.append(InjectionCompletedRecord(PUBLISH_PACKET_IDS - 2))
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1, 2, qos=1)
        expected = [
            PublishPacket("a", b"%d" % n, 1, packet_id=p)
            for n, p in ((1, PUBLISH_PACKET_IDS), (2, 1))
        ]
        await agent.expect_sent(*expected)
        await agent.injection.stop()

    run(work)


def test_full_inbox_acknowledges_nothing(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path, inbox_bytes=300)
        agent.deliver(1, 2, 3, qos=1)
        await until(lambda: agent.committed, "stored")
        assert (agent.committed, agent.injection.waiting_count) == ([InboxCommitted(YOU, 8, 2)], 1)
        agent.connect()
        await agent.expect_sent(packet(1, qos=1), packet(2, qos=1))
        agent.injection.on_handshake_steps([PubAckPacket(2)])
        await agent.expect_sent(packet(3, qos=1))
        assert agent.committed[-1] == InboxCommitted(YOU, 8, 3)
        await agent.injection.stop()

    run(work)


def test_gap_is_recorded_after_publications_before_it(tmp_path):
    """Otherwise the publications before the gap would not be requested after a restart."""

    async def work() -> None:
        agent = Incarnation(tmp_path, inbox_bytes=300)
        agent.deliver(1, 2, 3, qos=1)
        agent.injection.add_publications([Gap(YOU, 8, 4, 6, "retention")])
        await until(lambda: agent.committed, "stored")
        agent.crash()
        agent = Incarnation(tmp_path, inbox_bytes=300)
        assert (agent.inbox.accepted, list(agent.inbox.gaps)) == ({YOU: (8, 2)}, [])
        agent.injection.add_publications([Gap(OTHER, 8, 1, 2, "retention")])
        agent.deliver(3, qos=1)
        agent.injection.add_publications([Gap(YOU, 8, 4, 6, "retention")])
        agent.connect()
        agent.injection.on_handshake_steps([PubAckPacket(2), PubAckPacket(3)])
        await until(lambda: InboxCommitted(YOU, 8, 3) in agent.committed, "room")
        await agent.injection.stop()
        agent = Incarnation(tmp_path)
        assert agent.inbox.accepted == {YOU: (8, 6), OTHER: (8, 2)}
        assert [(each.first, each.last) for each in agent.inbox.gaps] == [(1, 2), (4, 6)]
        await agent.injection.stop()

    run(work)


def test_session_loss_sends_in_flight_publications_again(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1, 2)
        await agent.expect_sent(packet(1), packet(2))
        agent.injection.on_handshake_steps([PubRecPacket(2)])
        await agent.expect_sent(PubRelPacket(2))
        agent.injection.on_disconnected()
        agent.deliver(3)
        await until(lambda: len(agent.committed) == 2, "stored")
        agent.connect(session_present=False)
        await agent.expect_sent(*(packet(n, marked=n < 3) for n in (1, 2, 3)))
        assert agent.injection.counters["injections uncertain"] == 2
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.connect()
        await agent.expect_sent(*(packet(n, dup=True, marked=n < 3) for n in (1, 2, 3)))
        assert agent.inbox.accepted == {YOU: (8, 3)}
        await agent.injection.stop()

    run(work)


def test_session_loss_keeps_order_of_publications_not_durable(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1)
        await agent.expect_sent(packet(1))
        agent.injection.on_disconnected()
        agent.deliver(2)  # appended and not durable when the session is lost
        agent.connect(session_present=False)
        await agent.expect_sent(packet(1, marked=True), packet(2))
        agent.injection.on_disconnected()
        agent.connect()
        await agent.expect_sent(packet(1, dup=True, marked=True), packet(2, dup=True))
        assert agent.committed[-1].seq == 2
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.connect()
        await agent.expect_sent(packet(1, dup=True, marked=True), packet(2, dup=True))
        await agent.injection.stop()

    run(work)


def test_redelivered_property_is_added_once_and_not_to_retained_values(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1)
        await agent.expect_sent(packet(1))
        agent.injection.add_publications([Publication(YOU, 8, 2, 2, "a", b"2", retain=True)])
        await until(lambda: agent.sent, "the value")
        for _ in range(2):
            agent.injection.on_disconnected()
            agent.sent.clear()
            agent.connect(session_present=False)
            await until(lambda: len(agent.sent) == 2, "both again")
        properties = [each.properties for each in agent.sent if isinstance(each, PublishPacket)]
        assert properties == [REDELIVERED_PROPERTY, b""]
        await agent.injection.stop()

    run(work)


def test_at_most_receive_maximum_of_recovered_entries_is_uncertain(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path, session_loss_policy="no-dup")
        agent.deliver(1, 2, 3, 4, 5, 6)
        await until(lambda: InboxCommitted(YOU, 8, 6) in agent.committed, "stored")
        agent.crash()
        agent = Incarnation(tmp_path, session_loss_policy="no-dup")
        for lost, left in ((2, (3, 4)), (4, (5, 6))):
            agent.connect(session_present=False, receive_maximum=2)
            await agent.expect_sent(*(packet(n) for n in left))
            assert agent.injection.counters["injections uncertain"] == lost
            agent.injection.on_disconnected()
        await agent.injection.stop()

    run(work)


def test_no_dup_policy_drops_uncertain_publications(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path, session_loss_policy="no-dup")
        agent.connect()
        agent.deliver(1)
        await agent.expect_sent(packet(1))
        agent.injection.on_disconnected()
        agent.deliver(2)
        await until(lambda: len(agent.committed) == 2, "stored")
        agent.connect(session_present=False)
        await agent.expect_sent(packet(2))
        assert agent.injection.counters["injections uncertain"] == 1
        await agent.injection.stop()

    run(work)


def test_refused_publication_is_counted_and_completed(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1, 2, qos=2)
        agent.deliver(3, qos=1)
        await agent.expect_sent(packet(1), packet(2), packet(3, qos=1))
        agent.injection.on_handshake_steps([PubRecPacket(2, 0x87)])
        agent.injection.on_not_sent([packet(2)], "too large")
        agent.injection.on_handshake_steps(
            [PubAckPacket(4, 0x10)]
        )  # no matching subscribers: not a refusal
        assert agent.inbox.entries == {}
        assert agent.dropped["too large"] == 1
        assert agent.dropped["the broker refuses it (0x87 not authorized)"] == 1
        await agent.injection.stop()

    run(work)


def test_packet_identifier_in_use_is_accepted_for_redelivery_only(tmp_path):
    """EMQX returns this for a publication that it has, until PUBREL."""

    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1)
        await agent.expect_sent(packet(1))
        agent.crash()
        agent = Incarnation(tmp_path)
        agent.connect()
        await agent.expect_sent(packet(1, dup=True))
        agent.deliver(2)
        await agent.expect_sent(packet(2))
        agent.injection.on_handshake_steps([PubRecPacket(2, 0x91), PubRecPacket(3, 0x91)])
        await agent.expect_sent(PubRelPacket(2))
        agent.injection.on_handshake_steps([PubCompPacket(2)])
        assert agent.inbox.entries == {}
        refused = "the broker refuses it (0x91 packet identifier in use)"
        assert agent.dropped[refused] == 1
        await agent.injection.stop()

    run(work)


def test_lower_receive_maximum_does_not_reduce_uncertain_publications(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1, 2, 3)
        await agent.expect_sent(packet(1), packet(2), packet(3))
        agent.injection.on_disconnected()
        agent.connect(session_present=False, receive_maximum=1)
        await agent.expect_sent(packet(1, marked=True))
        assert agent.injection.counters["injections uncertain"] == 3
        await agent.injection.stop()

    run(work)


def test_qos_is_lowered_to_maximum_of_broker(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect(qos_max=1)
        agent.deliver(1)
        await agent.expect_sent(packet(1, qos=1))
        agent.injection.on_disconnected()
        agent.connect(qos_max=0)
        await agent.expect_sent(PublishPacket("a", b"1"))
        assert agent.inbox.entries == {}
        await agent.injection.stop()

    run(work)


def test_local_topic_is_accepted_and_not_published(tmp_path):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.injection.add_publications([Publication(YOU, 8, 1, 1, "stays", b"x")])
        agent.deliver(2)
        await agent.expect_sent(packet(1, b"2"))
        assert agent.committed == [InboxCommitted(YOU, 8, 2)]
        agent.crash()
        agent = Incarnation(tmp_path)
        assert agent.inbox.accepted == {YOU: (8, 2)}
        await agent.injection.stop()

    run(work)


@pytest.mark.parametrize("count", [1, 40])
def test_every_segment_restores_complete_state(tmp_path, count):
    async def work() -> None:
        small = JournalSettings(segment_bytes=300, retention_bytes=300)
        agent = Incarnation(tmp_path, small)
        agent.connect()
        agent.deliver(1, 2)
        await agent.expect_sent(packet(1), packet(2))
        agent.injection.on_handshake_steps([PubRecPacket(2)])
        await agent.expect_sent(PubRelPacket(2))
        for number in range(3, 3 + count):
            agent.deliver(number, qos=1)
            await agent.expect_sent(packet(number, qos=1))
            agent.injection.on_handshake_steps([PubAckPacket(1 + number)])
            agent.inbox.writer.commit()
        agent.crash()
        agent = Incarnation(tmp_path, small)
        assert agent.inbox.accepted == {YOU: (8, 2 + count)}
        agent.connect()
        await agent.expect_sent(PubRelPacket(2), packet(2, dup=True))
        agent.deliver(100)
        await agent.expect_sent(packet(3 + count, b"100"))
        await agent.injection.stop()

    run(work)


def test_unusable_journal_stops_handshakes(tmp_path, monkeypatch):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1)
        await agent.expect_sent(packet(1))

        def fail(record: object) -> int:
            raise JournalUnusable("broken")

        monkeypatch.setattr(agent.inbox.writer, "append", fail)
        agent.injection.on_handshake_steps([PubRecPacket(2)])
        agent.deliver(2)
        assert (agent.sent, agent.problems[-1], agent.injection.waiting_count) == ([], "broken", 1)
        await agent.injection.stop()

    run(work)


def test_damaged_inbox_is_moved(tmp_path):
    path = tmp_path / "inbox"
    agent = Incarnation(path)
    agent.inbox.add(Publication(YOU, 8, 1, 1, "a", b"x"))
    agent.inbox.writer.close()
    (file,) = path.glob("*.log")
    file.write_bytes(file.read_bytes()[:-3])
    again = InboxJournal(path, ME, 6, JournalSettings())
    assert "moved to inbox-damaged-6" in again.damage_text
    assert (again.entries, again.accepted) == ({}, {})
    again.writer.close()


def test_nothing_is_published_after_journal_failure(tmp_path, monkeypatch):
    async def work() -> None:
        agent = Incarnation(tmp_path)
        agent.connect()
        agent.deliver(1, qos=1)
        await agent.expect_sent(packet(1, qos=1))

        def fail(record: object) -> int:
            raise JournalUnusable("broken")

        monkeypatch.setattr(agent.inbox.writer, "append", fail)
        agent.injection.on_handshake_steps([PubAckPacket(2)])
        agent.injection.on_disconnected()
        agent.connect()
        assert agent.sent == []

    run(work)
