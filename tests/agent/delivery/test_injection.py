"""From the journal into the broker: the handshakes, and how a new life or session takes them up."""

import time

import pytest
from tests.agent.delivery.incarnation import ME, OTHER, YOU, Life, packet, run
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
        life = Life(tmp_path)
        life.connect()
        life.deliver(1)
        assert not life.said and not life.stored  # nothing before it is durable
        await life.says(packet(1))
        assert life.stored == [InboxCommitted(YOU, 8, 1)]
        life.injection.on_handshake_steps([PubRecPacket(2)])
        assert life.said == []
        await life.says(PubRelPacket(2))
        life.injection.on_handshake_steps([PubCompPacket(2)])
        assert life.backlog.entries == {}
        await life.injection.stop()

    run(work)


def test_qos_1_handshake(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1, qos=1)
        await life.says(packet(1, qos=1))
        life.injection.on_handshake_steps([PubAckPacket(2)])
        assert life.backlog.entries == {}
        await life.injection.stop()

    run(work)


def test_publications_wait_in_inbox_without_broker(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.deliver(1, 2)
        life.deliver(1, origin=OTHER)
        await until(lambda: len(life.stored) == 2, "stored")
        assert life.stored == [InboxCommitted(YOU, 8, 2), InboxCommitted(OTHER, 8, 1)]
        life.connect()
        await life.says(packet(1), packet(2), packet(3, b"1"))
        await life.injection.stop()

    run(work)


def test_time_in_the_inbox_counts_towards_the_expiry(tmp_path, monkeypatch):
    async def work() -> None:
        life = Life(tmp_path)
        now = time.time_ns()
        for number, seconds in enumerate((4, 5, 60), start=1):
            raw = encode_properties(((Property.MESSAGE_EXPIRY_INTERVAL, seconds),))
            life.injection.add_publications(
                [Publication(YOU, 8, number, 1, "a", b"%d" % number, properties=raw)]
            )
        await until(lambda: len(life.stored) == 1, "stored")
        monkeypatch.setattr(time, "time_ns", lambda: now + 5_900_000_000)
        life.connect()
        await until(lambda: life.said, "published")
        (said,) = [each for each in life.said if isinstance(each, PublishPacket)]
        assert (said.payload, message_expiry(said.properties)) == (b"3", 55)
        assert life.injection.counters["dropped: expired"] == 2
        assert len(life.backlog.entries) == 1
        await life.injection.stop()

    run(work)


def test_restart_resumes_every_handshake(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1, 2, 3)
        await life.says(packet(1), packet(2), packet(3))
        life.injection.on_handshake_steps([PubRecPacket(2), PubRecPacket(3)])
        await life.says(PubRelPacket(2), PubRelPacket(3))
        life.injection.on_handshake_steps([PubCompPacket(2)])
        life.backlog.writer.commit()
        life.crash()
        life = Life(tmp_path)
        assert life.backlog.accepted == {YOU: (8, 3)}
        life.connect()
        await life.says(PubRelPacket(3), packet(3, dup=True))
        life.injection.on_handshake_steps([PubRecPacket(4)])
        await life.says(PubRelPacket(4))
        life.injection.on_handshake_steps([PubCompPacket(3), PubCompPacket(4)])
        life.deliver(4)
        await life.says(packet(4))
        await life.injection.stop()

    run(work)


def test_publication_not_durably_accepted_is_sent_again(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1)
        await life.says(packet(1))
        life.backlog.mark_accepted(life.backlog.entries[1])
        life.crash()
        life = Life(tmp_path)
        life.connect()
        await life.says(packet(1, dup=True))
        await life.injection.stop()

    run(work)


def test_reconnect_after_pubrec_sends_pubrel(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1, 2)
        await life.says(packet(1), packet(2))
        life.injection.on_handshake_steps([PubRecPacket(2)])
        life.injection.on_disconnected()
        life.connect()
        await until(lambda: len(life.said) == 2, "both")
        assert set(life.said) == {PubRelPacket(2), packet(2, dup=True)}
        await life.injection.stop()

    run(work)


def test_in_flight_limit_is_smaller_of_setting_and_receive_maximum(tmp_path):
    async def work() -> None:
        life = Life(tmp_path, in_flight_max=3)
        life.connect(receive_maximum=2)
        life.deliver(1, 2, 3, 4, qos=1)
        await life.says(packet(1, qos=1), packet(2, qos=1))
        life.injection.on_handshake_steps([PubAckPacket(2)])
        assert life.said == []  # a crash now would repeat the first
        await life.says(packet(3, qos=1))
        life.injection.on_disconnected()
        life.connect(receive_maximum=9)
        await life.says(*(packet(n, qos=1, dup=n < 4) for n in (2, 3, 4)))
        await life.injection.stop()

    run(work)


def test_packet_ids_wrap_around(tmp_path):
    async def work() -> None:
        with JournalWriter(tmp_path, ME, 5) as writer:
            writer.append(InjectionCompletedRecord(PUBLISH_PACKET_IDS - 2))
        life = Life(tmp_path)
        life.connect()
        life.deliver(1, 2, qos=1)
        expected = [
            PublishPacket("a", b"%d" % n, 1, packet_id=p)
            for n, p in ((1, PUBLISH_PACKET_IDS), (2, 1))
        ]
        await life.says(*expected)
        await life.injection.stop()

    run(work)


def test_full_inbox_acknowledges_nothing(tmp_path):
    async def work() -> None:
        life = Life(tmp_path, inbox_bytes=300)
        life.deliver(1, 2, 3, qos=1)
        await until(lambda: life.stored, "stored")
        assert (life.stored, life.injection.waiting_count) == ([InboxCommitted(YOU, 8, 2)], 1)
        life.connect()
        await life.says(packet(1, qos=1), packet(2, qos=1))
        life.injection.on_handshake_steps([PubAckPacket(2)])
        await life.says(packet(3, qos=1))
        assert life.stored[-1] == InboxCommitted(YOU, 8, 3)
        await life.injection.stop()

    run(work)


def test_gap_is_recorded_after_publications_before_it(tmp_path):
    """Or the next life would not ask for that either."""

    async def work() -> None:
        life = Life(tmp_path, inbox_bytes=300)
        life.deliver(1, 2, 3, qos=1)
        life.injection.add_publications([Gap(YOU, 8, 4, 6, "retention")])
        await until(lambda: life.stored, "stored")
        life.crash()
        life = Life(tmp_path, inbox_bytes=300)
        assert (life.backlog.accepted, list(life.backlog.gaps)) == ({YOU: (8, 2)}, [])
        life.injection.add_publications([Gap(OTHER, 8, 1, 2, "retention")])
        life.deliver(3, qos=1)
        life.injection.add_publications([Gap(YOU, 8, 4, 6, "retention")])
        life.connect()
        life.injection.on_handshake_steps([PubAckPacket(2), PubAckPacket(3)])
        await until(lambda: InboxCommitted(YOU, 8, 3) in life.stored, "room")
        await life.injection.stop()
        life = Life(tmp_path)
        assert life.backlog.accepted == {YOU: (8, 6), OTHER: (8, 2)}
        assert [(each.first, each.last) for each in life.backlog.gaps] == [(1, 2), (4, 6)]
        await life.injection.stop()

    run(work)


def test_session_loss_sends_in_flight_publications_again(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1, 2)
        await life.says(packet(1), packet(2))
        life.injection.on_handshake_steps([PubRecPacket(2)])
        await life.says(PubRelPacket(2))
        life.injection.on_disconnected()
        life.deliver(3)
        await until(lambda: len(life.stored) == 2, "stored")
        life.connect(session_present=False)
        await life.says(*(packet(n, marked=n < 3) for n in (1, 2, 3)))
        assert life.injection.counters["injections uncertain"] == 2
        life.crash()
        life = Life(tmp_path)
        life.connect()
        await life.says(*(packet(n, dup=True, marked=n < 3) for n in (1, 2, 3)))
        assert life.backlog.accepted == {YOU: (8, 3)}
        await life.injection.stop()

    run(work)


def test_session_loss_keeps_order_of_publications_not_durable(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1)
        await life.says(packet(1))
        life.injection.on_disconnected()
        life.deliver(2)  # bound, and not durable when the session turns out to be lost
        life.connect(session_present=False)
        await life.says(packet(1, marked=True), packet(2))
        life.injection.on_disconnected()
        life.connect()
        await life.says(packet(1, dup=True, marked=True), packet(2, dup=True))
        assert life.stored[-1].seq == 2
        life.crash()
        life = Life(tmp_path)
        life.connect()
        await life.says(packet(1, dup=True, marked=True), packet(2, dup=True))
        await life.injection.stop()

    run(work)


def test_redelivered_property_is_added_once_and_not_to_retained_values(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1)
        await life.says(packet(1))
        life.injection.add_publications([Publication(YOU, 8, 2, 2, "a", b"2", retain=True)])
        await until(lambda: life.said, "the value")
        for _ in range(2):
            life.injection.on_disconnected()
            life.said.clear()
            life.connect(session_present=False)
            await until(lambda: len(life.said) == 2, "both again")
        properties = [each.properties for each in life.said if isinstance(each, PublishPacket)]
        assert properties == [REDELIVERED_PROPERTY, b""]
        await life.injection.stop()

    run(work)


def test_at_most_receive_maximum_of_recovered_entries_is_uncertain(tmp_path):
    async def work() -> None:
        life = Life(tmp_path, session_loss_policy="no-dup")
        life.deliver(1, 2, 3, 4, 5, 6)
        await until(lambda: InboxCommitted(YOU, 8, 6) in life.stored, "stored")
        life.crash()
        life = Life(tmp_path, session_loss_policy="no-dup")
        for lost, left in ((2, (3, 4)), (4, (5, 6))):
            life.connect(session_present=False, receive_maximum=2)
            await life.says(*(packet(n) for n in left))
            assert life.injection.counters["injections uncertain"] == lost
            life.injection.on_disconnected()
        await life.injection.stop()

    run(work)


def test_no_dup_policy_drops_uncertain_publications(tmp_path):
    async def work() -> None:
        life = Life(tmp_path, session_loss_policy="no-dup")
        life.connect()
        life.deliver(1)
        await life.says(packet(1))
        life.injection.on_disconnected()
        life.deliver(2)
        await until(lambda: len(life.stored) == 2, "stored")
        life.connect(session_present=False)
        await life.says(packet(2))
        assert life.injection.counters["injections uncertain"] == 1
        await life.injection.stop()

    run(work)


def test_refused_publication_is_counted_and_completed(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1, 2, qos=2)
        life.deliver(3, qos=1)
        await life.says(packet(1), packet(2), packet(3, qos=1))
        life.injection.on_handshake_steps([PubRecPacket(2, 0x87)])
        life.injection.on_not_sent([packet(2)], "too large")
        life.injection.on_handshake_steps(
            [PubAckPacket(4, 0x10)]
        )  # nobody is subscribed: that is no refusal
        assert life.backlog.entries == {}
        assert life.dropped["too large"] == 1
        assert life.dropped["the broker refuses it (0x87 not authorized)"] == 1
        await life.injection.stop()

    run(work)


def test_packet_identifier_in_use_is_accepted_for_redelivery_only(tmp_path):
    """EMQX says so of what it had before, and takes the id for free only after PUBREL."""

    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1)
        await life.says(packet(1))
        life.crash()
        life = Life(tmp_path)
        life.connect()
        await life.says(packet(1, dup=True))
        life.deliver(2)
        await life.says(packet(2))
        life.injection.on_handshake_steps([PubRecPacket(2, 0x91), PubRecPacket(3, 0x91)])
        await life.says(PubRelPacket(2))
        life.injection.on_handshake_steps([PubCompPacket(2)])
        assert life.backlog.entries == {}
        refused = "the broker refuses it (0x91 packet identifier in use)"
        assert life.dropped[refused] == 1
        await life.injection.stop()

    run(work)


def test_lower_receive_maximum_does_not_reduce_uncertain_publications(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1, 2, 3)
        await life.says(packet(1), packet(2), packet(3))
        life.injection.on_disconnected()
        life.connect(session_present=False, receive_maximum=1)
        await life.says(packet(1, marked=True))
        assert life.injection.counters["injections uncertain"] == 3
        await life.injection.stop()

    run(work)


def test_qos_is_lowered_to_maximum_of_broker(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect(qos_max=1)
        life.deliver(1)
        await life.says(packet(1, qos=1))
        life.injection.on_disconnected()
        life.connect(qos_max=0)
        await life.says(PublishPacket("a", b"1"))
        assert life.backlog.entries == {}
        await life.injection.stop()

    run(work)


def test_local_topic_is_accepted_and_not_published(tmp_path):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.injection.add_publications([Publication(YOU, 8, 1, 1, "stays", b"x")])
        life.deliver(2)
        await life.says(packet(1, b"2"))
        assert life.stored == [InboxCommitted(YOU, 8, 2)]
        life.crash()
        life = Life(tmp_path)
        assert life.backlog.accepted == {YOU: (8, 2)}
        await life.injection.stop()

    run(work)


@pytest.mark.parametrize("count", [1, 40])
def test_every_segment_restores_complete_state(tmp_path, count):
    async def work() -> None:
        small = JournalSettings(segment_bytes=300, retention_bytes=300)
        life = Life(tmp_path, small)
        life.connect()
        life.deliver(1, 2)
        await life.says(packet(1), packet(2))
        life.injection.on_handshake_steps([PubRecPacket(2)])
        await life.says(PubRelPacket(2))
        for number in range(3, 3 + count):
            life.deliver(number, qos=1)
            await life.says(packet(number, qos=1))
            life.injection.on_handshake_steps([PubAckPacket(1 + number)])
            life.backlog.writer.commit()
        life.crash()
        life = Life(tmp_path, small)
        assert life.backlog.accepted == {YOU: (8, 2 + count)}
        life.connect()
        await life.says(PubRelPacket(2), packet(2, dup=True))
        life.deliver(100)
        await life.says(packet(3 + count, b"100"))
        await life.injection.stop()

    run(work)


def test_unusable_journal_stops_handshakes(tmp_path, monkeypatch):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1)
        await life.says(packet(1))

        def fail(record: object) -> int:
            raise JournalUnusable("broken")

        monkeypatch.setattr(life.backlog.writer, "append", fail)
        life.injection.on_handshake_steps([PubRecPacket(2)])
        life.deliver(2)
        assert (life.said, life.problems[-1], life.injection.waiting_count) == ([], "broken", 1)
        await life.injection.stop()

    run(work)


def test_damaged_inbox_is_moved(tmp_path):
    path = tmp_path / "inbox"
    life = Life(path)
    life.backlog.add(Publication(YOU, 8, 1, 1, "a", b"x"))
    life.backlog.writer.close()
    (file,) = path.glob("*.log")
    file.write_bytes(file.read_bytes()[:-3])
    again = InboxJournal(path, ME, 6, JournalSettings())
    assert "moved to inbox-damaged-6" in again.damage_text
    assert (again.entries, again.accepted) == ({}, {})
    again.writer.close()


def test_nothing_is_published_after_journal_failure(tmp_path, monkeypatch):
    async def work() -> None:
        life = Life(tmp_path)
        life.connect()
        life.deliver(1, qos=1)
        await life.says(packet(1, qos=1))

        def fail(record: object) -> int:
            raise JournalUnusable("broken")

        monkeypatch.setattr(life.backlog.writer, "append", fail)
        life.injection.on_handshake_steps([PubAckPacket(2)])
        life.injection.on_disconnected()
        life.connect()
        assert life.said == []

    run(work)
