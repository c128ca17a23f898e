"""Virtual time."""

from hansa.simulator.world.scheduler import BatchedCalls, Scheduler


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


# ---------------------------------------------------------------- batched calls


def test_items_that_directly_follow_each_other_share_a_call():
    scheduler = Scheduler()
    calls: list[object] = []
    batched = BatchedCalls(scheduler, 1.0, lambda key, items: calls.append((key, items)))
    batched.add(7, ("a",))
    batched.add(7, ("b", "c"))
    scheduler.run_until(1.0)
    assert calls == [(7, ["a", "b", "c"])]


def test_another_call_another_key_or_a_later_time_start_a_new_batch():
    scheduler = Scheduler()
    calls: list[object] = []
    batched = BatchedCalls(scheduler, 1.0, lambda key, items: calls.append((key, items)))
    batched.add(7, ("a",))
    batched.add(8, ("b",))
    scheduler.after(1.0, calls.append, "between")
    batched.add(8, ("c",))
    scheduler.run_until(0.5)
    batched.add(8, ("d",))
    scheduler.run_until(2.0)
    assert calls == [(7, ["a"]), (8, ["b"]), "between", (8, ["c"]), (8, ["d"])]


def test_a_batch_that_has_run_gets_no_more_items():
    scheduler = Scheduler()
    calls: list[object] = []
    batched = BatchedCalls(scheduler, 0.0, lambda key, items: calls.append([*items]))
    batched.add(7, ("a",))
    scheduler.run_until(0.0)
    batched.add(7, ("b",))
    scheduler.run_until(0.0)
    assert calls == [["a"], ["b"]]
