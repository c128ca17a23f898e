"""QoS 1 and 2 at an agent: when it acknowledges, when it injects."""

from tests.simulator.worlds import SimulatedRun

from hansa.delivery.inputs import RequireFilters
from hansa.protocol.effects import Gap
from hansa.simulator.actions import (
    BackUpState,
    ClientPublish,
    ClientSubscribe,
    CrashAgent,
    CutLink,
    FillDisk,
    FreezeAgent,
    RefuseAgent,
    RestartAgent,
    RestartBroker,
    RestoreLink,
    RollBackState,
    StallDisk,
)
from hansa.simulator.options import DiskOptions

WANTED = (0.0, ClientSubscribe(1, "a"))


def played(*script, sync_ms=100.0, **bounds):
    """Two nodes, the second interested in `a`; a sync takes 0.1 s by default."""
    return SimulatedRun("line:2", [WANTED, *script], disk=DiskOptions(sync_ms, **bounds))


def session(world, place=0):
    return [packet.packet_id for packet in world.world.sites[place].broker.unacknowledged]


def test_publication_stays_in_session_until_sync():
    world = played((5.0, ClientPublish(0, "a", qos=1))).run(5.09)
    assert session(world) == [1]
    world.run(5.2)
    assert session(world) == []


def test_publication_without_interest_is_acknowledged_at_once():
    world = played().run(4.9)
    world.world.sites[0].delivery.handle(RequireFilters(("b",)))
    world.run(5.2)
    world.world.publish(world.world.sites[0], "b", 8, 1, False)
    assert session(world) == [1]
    world.run(5.201)
    assert (session(world), world.world.sites[0].state.disk.journal) == ([], [])


def test_injection_waits_for_sync():
    world = played((5.0, ClientPublish(0, "a", qos=1))).run(5.19)
    assert world.received(1) == []
    assert world.run(5.3).received(1) == [0]


def test_crash_before_sync_loses_nothing():
    world = played(
        (5.0, ClientPublish(0, "a", qos=1)), (5.05, CrashAgent(0)), (6.0, RestartAgent(0))
    )
    assert session(world.run(5.9)) == [1]
    assert world.run(10.0).received(1) == [0]
    assert session(world) == []


def test_acknowledged_progress_survives_restart():
    script = [
        (5.0, ClientPublish(0, "a", qos=1)),
        (7.0, ClientPublish(0, "a", qos=1)),
        (9.0, RestartAgent(0)),
    ]
    world = played(*script).run(9.01)
    assert world.world.sites[0].node.delivery.acknowledged == {1: 2}


def test_redelivered_packet_is_acknowledged_but_not_captured():
    script = [(5.0, ClientPublish(0, "a", qos=1)), (5.10005, RefuseAgent(0, 0.5))]
    world = played(*script).run(5.5)
    disk = world.world.sites[0].state.disk
    assert (len(disk.journal), session(world)) == (1, [1])
    world.run(10.0)
    assert (len(disk.journal), session(world)) == (1, [])
    assert world.received(1) == [0]
    assert world.world.sites[0].delivery.core.counters["redeliveries"] == 1


def test_stalled_disk_delays_everything():
    world = played((5.0, StallDisk(0, 3.0)), (5.1, ClientPublish(0, "a", qos=1, count=3)))
    world.run(7.9)
    assert (session(world), world.received(1)) == ([1, 2, 3], [])
    world.run(9.0)
    assert (session(world), world.received(1)) == ([], [0, 1, 2])


def test_full_disk_of_origin_delays_acknowledgements():
    world = played((5.0, FillDisk(0, 0.5)), (5.1, ClientPublish(0, "a", qos=1, count=3)))
    world.run(5.9)
    assert (session(world), world.received(1)) == ([1, 2, 3], [])
    world.run(7.0)
    assert (session(world), world.received(1)) == ([], [0, 1, 2])


def test_full_disk_of_receiver_delays_injection():
    world = played((5.0, FillDisk(1, 0.5)), (5.1, ClientPublish(0, "a", qos=2, count=3)))
    assert world.run(5.9).received(1) == []
    assert world.run(7.5).received(1) == [0, 1, 2]


def test_interest_is_persisted_when_a_full_disk_has_room_again():
    world = played((3.0, FillDisk(0, 0.5)), (3.1, ClientSubscribe(1, "b")))
    world.run(3.9)
    origin = world.world.sites[0].node
    assert not origin.receivers_in_force("b")
    world.run(6.0)
    assert list(origin.receivers_in_force("b")) == [1]


def test_dropped_publication_is_not_captured():
    publish = (5.1, ClientPublish(0, "a", qos=1, count=5, interval_s=0.01))
    world = played((5.0, StallDisk(0, 3.0)), publish, broker_queue_max=1, in_flight_max=1)
    world.run(10.0)
    assert world.received(1) == [0, 1]
    assert [entry.is_captured for entry in world.world.ledger.entries] == [True] * 2 + [False] * 3
    assert world.world.sites[0].broker.dropped_count == 3


def test_lost_session_loses_uncaptured_publications():
    script = (
        (5.0, ClientPublish(0, "a", qos=1)),
        (5.1, CrashAgent(0)),
        (5.2, ClientPublish(0, "a", qos=1)),
        (5.3, RestartBroker(0)),
        (6.0, RestartAgent(0)),
        (8.0, ClientPublish(0, "a", qos=1)),
    )
    world = played(*script, sync_ms=1.0).run(12.0)
    assert world.received(1) == [0, 2]
    assert [entry.is_captured for entry in world.world.ledger.entries] == [True, False, True]


def test_publications_to_suspended_agent_wait():
    world = played((5.0, FreezeAgent(0, 1.0)), (5.1, ClientPublish(0, "a", qos=1)), sync_ms=1.0)
    assert world.run(5.9).received(1) == []
    assert world.run(7.0).received(1) == [0]


def test_small_journal_causes_a_gap():
    script = (
        (5.0, CrashAgent(1)),
        (6.0, ClientPublish(0, "a", qos=1, count=5)),
        (8.0, RestartAgent(1)),
    )
    world = played(*script, sync_ms=1.0, journal_max=2).run(12.0)
    assert world.received(1) == [3, 4]
    (gap,) = world.notifications(Gap, 1)
    assert (gap.first, gap.last, gap.reason) == (1, 3, "retention")


def test_publication_beyond_inbox_limit_waits_unsynced():
    refused = (4.0, RefuseAgent(1, 4.0))
    world = played(refused, (5.0, ClientPublish(0, "a", qos=2, count=5)), inbox_max=2).run(7.9)
    core = world.world.sites[1].delivery.core
    assert core.inbox.origin_progress == {0: (site_epoch(world), 2)}
    assert core.injection.waiting_count == 3
    assert world.run(15.0).received(1) == [0, 1, 2, 3, 4]
    assert core.injection.waiting_count == 0


def test_gap_survives_restart():
    script = [
        (5.0, CutLink(0, 1)),
        (6.0, ClientPublish(0, "a", qos=1, count=5)),
        (8.0, RestoreLink(0, 1)),
    ]
    world = played(*script, (12.0, RestartAgent(1)), (13.0, RestartAgent(0)), journal_max=2).run(
        20.0
    )
    (gap,) = world.notifications(Gap, 1)
    assert (gap.first, gap.last) == (1, 3)
    assert world.received(1) == [3, 4]


def test_stalled_disk_delays_reads():
    script = [(5.0, CutLink(0, 1)), (6.0, ClientPublish(0, "a", qos=1)), (8.0, RestoreLink(0, 1))]
    world = played(*script, (7.0, StallDisk(0, 6.0)), sync_ms=5.0).run(12.9)
    assert world.received(1) == []
    assert world.run(14.0).received(1) == [0]


def test_rolled_back_empty_journal_starts_a_new_epoch():
    before = [
        (4.0, BackUpState(0)),
        (5.0, ClientPublish(0, "a", qos=2, count=3)),
        (6.0, CutLink(0, 1)),
    ]
    after = [
        (7.0, RollBackState(0)),
        (8.0, ClientPublish(0, "a", qos=2, count=5)),
        (10.0, RestoreLink(0, 1)),
    ]
    assert played(*before, *after).run(15.0).received(1) == [*range(8)]


def site_epoch(world, place=0):
    return world.world.sites[place].state.disk.outbox.epoch
