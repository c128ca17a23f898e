"""Virtual time."""

from hansa.simulator.world.scheduler import Scheduler


def test_calls_run_in_order_of_time():
    scheduler = Scheduler()
    seen: list[object] = []
    scheduler.at(2.0, seen.append, "later")
    scheduler.at(1.0, seen.append, "sooner")
    scheduler.run_until(until=3.0)
    assert seen == ["sooner", "later"]


def test_simultaneous_calls_run_in_order_of_scheduling():
    scheduler = Scheduler()
    seen: list[object] = []
    for name in "zebra":
        scheduler.at(1.0, seen.append, name)
    scheduler.run_until(until=1.0)
    assert seen == list("zebra")


def test_call_sees_its_time_and_may_schedule_more():
    scheduler = Scheduler()
    seen: list[object] = []

    def note(again: bool) -> None:
        seen.append(scheduler.now)
        if again:
            scheduler.after(0.5, note, False)

    scheduler.at(1.0, note, True)
    scheduler.run_until(until=2.0)
    assert seen == [1.0, 1.5]
    assert scheduler.now == 2.0


def test_later_calls_wait():
    scheduler = Scheduler()
    seen: list[object] = []
    scheduler.at(5.0, seen.append, "late")
    scheduler.run_until(until=4.0)
    assert seen == []
    scheduler.run_until(until=5.0)
    assert seen == ["late"]


def test_past_time_means_now():
    scheduler = Scheduler()
    seen: list[object] = []
    scheduler.run_until(until=3.0)
    scheduler.at(1.0, lambda: seen.append(scheduler.now))
    scheduler.run_until(until=3.0)
    assert seen == [3.0]
