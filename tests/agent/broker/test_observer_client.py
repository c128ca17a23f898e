"""The observer client with a fake connection and a fake observer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.agent.waiting import until

from hansa.agent.broker import observer_client
from hansa.agent.broker.observer_client import ObserverClient
from hansa.errors import UsageError
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.limits import BrokerLimits
from hansa.mqtt.types import Version
from hansa.observers.base import (
    ObservationComplete,
    ObservationIncomplete,
    Observer,
    ObserverFinding,
    ObserverOutput,
    ResyncFailed,
)
from hansa.observers.history import SubscriptionHistory
from hansa.protocol.events import InterestChanged

LOG = "$SYS/broker/log/M/subscribe"
CONNECTED = effects.Connected(
    False, BrokerLimits(version=Version.V5, client_id="x", keep_alive=30, session_expiry=0)
)


class ListObserver(Observer):
    """Reads `+a` and `-a` as changes, and `?a` as a sign of missed lines."""

    is_complete = True
    incomplete_reason = ""

    def __init__(self, *subscriptions: str) -> None:
        self._subscriptions = subscriptions
        self.calls: list[str] = []
        self.due: float | None = None

    def topics_to_subscribe(self) -> tuple[str, ...]:
        return self._subscriptions

    def subscribed_filters(self) -> tuple[str, ...]:
        return ()

    def receive_publication(self, topic: str, payload: bytes, now: float) -> ObserverOutput:
        sign, name = payload.decode()[0], payload.decode()[1:]
        if sign == "?":
            return ObserverOutput(findings=(ObservationIncomplete(name),))
        return ObserverOutput((name,)) if sign == "+" else ObserverOutput((), (name,))

    def begin_resync(self, now: float) -> None:
        self.calls.append("begin")

    def resync(self, text: str, now: float) -> ObserverOutput:
        if text == "fault":
            raise ZeroDivisionError("by zero")
        self.calls.append(text)
        return ObserverOutput(("r",), (), (ObservationComplete(),))

    def handle_timer(self, now: float) -> ObserverOutput:
        self.due = None
        return ObserverOutput((), ("late",))

    def next_deadline(self) -> float | None:
        return self.due

    def restore(self, saved: dict[str, object], now: float) -> ObserverOutput:
        if "bad" in saved:
            raise UsageError("not mine")
        return ObserverOutput(("saved",))

    def on_snapshot_missing(self) -> None:
        self.calls.append("snapshot missing")


class FakeConnection:
    def __init__(self, on_effect: Any) -> None:
        self.on_effect = on_effect
        self.orders: list[inputs.Input] = []

    def submit(self, event: inputs.Input) -> None:
        self.orders.append(event)


class Scene:
    def __init__(self, *subscriptions: str, histories: Sequence[SubscriptionHistory] = ()) -> None:
        self.observer = ListObserver(*subscriptions)
        self.fed: list[InterestChanged] = []
        self.found: list[ObserverFinding] = []
        self.client = ObserverClient(
            self.observer,
            FakeConnection,  # type: ignore[arg-type]
            feed=self.fed.append,
            on_finding=self.found.append,
            histories=histories,
        )
        self.broker: Any = self.client.connection

    def connect(self, *reasons: int) -> None:
        self.broker.on_effect(CONNECTED)
        wishes = tuple(map(packets.Subscription, self.observer.topics_to_subscribe()))
        self.broker.on_effect(effects.Subscribed(wishes, bytes(reasons or (0,) * len(wishes))))

    def receive(self, *payloads: bytes, topic: str = LOG) -> None:
        self.broker.on_effect(
            effects.PublishReceived([packets.PublishPacket(topic, p) for p in payloads])
        )


def run(work: Callable[[], Any]) -> Any:
    """Run a function inside an event loop, for the clock of the client."""

    async def inside() -> Any:
        outcome = work()
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    return asyncio.run(inside())


class ListHistory:
    """A history that returns these texts in turn."""

    def __init__(self, *words: str) -> None:
        self.words = list(words)

    async def read(self) -> str:
        if not self.words:
            raise UsageError("nothing more")
        return self.words.pop(0)


def test_client_subscribes_then_reads_the_log_then_reports_to_the_node():
    scene = Scene(LOG, "b", histories=[ListHistory("history"), ListHistory("not asked")])

    async def work() -> None:
        scene.connect()
        assert scene.fed == []
        await until(lambda: scene.fed, "reported")

    run(work)
    wishes = (packets.Subscription(LOG), packets.Subscription("b"))
    assert scene.broker.orders == [inputs.Subscribe(wishes)]
    assert {wish.qos for wish in wishes} == {0}  # at QoS 1 a burst overflows the broker's queue
    assert scene.observer.calls == ["begin", "history"]
    assert scene.fed == [InterestChanged(("r",))]
    assert scene.found == [ObservationComplete()]


def test_histories_are_read_until_state_is_complete():
    scene = Scene(LOG, histories=[ListHistory(), ListHistory("half"), ListHistory("more")])

    async def work() -> None:
        scene.observer.is_complete = False
        scene.connect()
        await until(lambda: scene.observer.calls[-1:] == ["more"], "all asked")

    run(work)
    assert scene.observer.calls == ["begin", "begin", "half", "begin", "more"]
    assert scene.found[0] == ResyncFailed("nothing more")


def test_missed_lines_cause_another_history_read(monkeypatch):
    monkeypatch.setattr(observer_client, "RESYNC_DELAY_S", 0.01)
    scene = Scene(LOG, histories=[ListHistory("first", "second")])

    async def work() -> None:
        scene.connect()
        await until(lambda: "first" in scene.observer.calls, "the first time")
        scene.receive(b"?lost", b"?lost")
        await until(lambda: "second" in scene.observer.calls, "again")

    run(work)
    assert scene.observer.calls == ["begin", "first", "begin", "second"]


def test_fault_is_reported_and_the_history_is_read_again_later(monkeypatch):
    monkeypatch.setattr(observer_client, "RESYNC_DELAY_S", 0.01)
    scene = Scene(LOG, histories=[ListHistory("fault", "second")])
    faults: list[object] = []

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, said: faults.append(repr(said["exception"]))
        )
        scene.connect()
        await until(lambda: faults, "the fault")
        scene.receive(b"?lost")
        await until(lambda: "second" in scene.observer.calls, "again")

    run(work)
    assert faults == ["ZeroDivisionError('by zero')"]


def test_without_a_log_file_empty_interest_is_reported_at_start():
    scene = Scene(LOG)
    run(scene.connect)
    assert scene.fed == [InterestChanged()]


def test_unreadable_history_is_reported():
    scene = Scene(LOG, histories=[ListHistory()])

    async def work() -> None:
        scene.connect()
        await until(lambda: scene.fed, "reported")

    run(work)
    assert scene.found == [ResyncFailed("nothing more")]
    assert scene.fed == [InterestChanged()]


def test_new_connection_discards_state_of_the_previous_one():
    class Endless:
        async def read(self) -> str:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    scene = Scene(LOG, histories=[Endless()])

    async def work() -> None:
        for _ in range(2):
            scene.connect()
            await until(lambda: scene.observer.calls, "begun")
            scene.observer.calls.clear()
        scene.client.stop()

    run(work)
    assert scene.fed == []


def test_burst_is_one_event_with_the_net_change():
    scene = Scene(LOG)
    run(lambda: scene.receive(b"+a", b"+b", b"-a", b"-c", b"+c", b"-d"))
    assert scene.fed == [InterestChanged(("b",), ("d",))]


def test_refused_log_topic_is_reported():
    scene = Scene(LOG, "b")
    run(lambda: scene.connect(0x87, 0))
    assert [str(each) for each in scene.found] == [
        f"ObservationIncomplete(reason='the broker does not let the agent subscribe to {LOG}')"
    ]


def test_lines_of_other_topics_do_not_end_a_refusal():
    """Notices come, but the broker does not show who subscribes."""

    def work() -> None:
        scene = Scene(LOG, "$SYS/broker/log/M/unsubscribe")
        scene.connect(0, 0x87)
        scene.receive(b"+a")
        assert not scene.client.complete
        assert "M/unsubscribe" in scene.client.reason
        scene.connect()
        scene.receive(b"+b")
        assert scene.client.reason == ""

    run(work)


def test_broker_without_log_lines_is_reported(monkeypatch):
    monkeypatch.setattr(observer_client, "LOG_TIMEOUT_S", 0.01)

    async def silent() -> Scene:
        scene = Scene(LOG)
        scene.connect()
        await until(lambda: scene.found, "complaint")
        return scene

    assert "the broker sends no log" in str(run(silent).found[0])

    async def speaking() -> Scene:
        scene = Scene(LOG)
        scene.connect()
        scene.receive(b"+a")
        await asyncio.sleep(0.03)
        return scene

    assert run(speaking).found == []


def test_snapshot_is_restored_and_a_foreign_one_is_ignored():
    scene = Scene(LOG)

    def work() -> None:
        for saved in (None, {"bad": 1}, {"good": 1}):
            scene.client.restore(saved)

    run(work)
    assert scene.fed == [InterestChanged(("saved",))]
    assert scene.found == [ResyncFailed("what was learned before cannot be used: not mine")]


def test_missing_snapshot_of_an_earlier_session_is_reported_to_the_observer():
    scene = Scene(LOG)
    scene.client.restore(None)
    assert scene.observer.calls == []
    scene.client.restore(None, had_session=True)
    assert scene.observer.calls == ["snapshot missing"]


def test_interest_of_observer_without_topics_is_reported_at_once():
    scene = Scene()
    run(scene.client.start)
    assert scene.fed == [InterestChanged()]


def test_expired_interest_is_withdrawn():
    async def work() -> Scene:
        scene = Scene(LOG)
        scene.observer.due = asyncio.get_running_loop().time()
        scene.receive(b"+a")
        await until(lambda: len(scene.fed) == 2, "expiry")
        scene.client.stop()
        return scene

    assert run(work).fed == [InterestChanged(("a",)), InterestChanged((), ("late",))]


def test_history_is_read_again_while_the_observer_is_incomplete(monkeypatch):
    """The file was not readable at first."""
    monkeypatch.setattr(observer_client, "RESYNC_RETRY_S", 0.01)
    history = ListHistory()

    async def work() -> Scene:
        scene = Scene(LOG, histories=[history])
        scene.observer.is_complete = False
        scene.connect()
        await until(lambda: len(scene.found) == 2, "two attempts")
        history.words = ["text"]
        await until(lambda: "text" in scene.observer.calls, "read")
        scene.client.stop()
        return scene

    run(work)


# ---------------------------------------------------------------- wide interest


class UncertainObserver(ListObserver):
    """An observer whose completeness the test sets; subscribed to `a`."""

    def subscribed_filters(self) -> tuple[str, ...]:
        return self.names

    names: tuple[str, ...] = ("a",)
    is_confirmation_pending = False


class WideScene(Scene):
    def __init__(self, *wide: str, histories: Sequence[SubscriptionHistory] = ()) -> None:
        super().__init__(LOG, histories=histories)
        self.observer: UncertainObserver = UncertainObserver(LOG)
        self.observer.is_complete, self.observer.incomplete_reason = False, "something is unknown"
        self.client.observer = self.observer
        self.client.filters_when_unknown = wide
        self.reasons: list[str] = []
        self.client.on_incomplete = self.reasons.append

    def become(self, *, complete: bool) -> None:
        self.observer.is_complete = complete
        self.observer.incomplete_reason = "" if complete else "something is unknown"
        self.client.apply_output(ObserverOutput())


def test_pending_confirmation_is_reported_only_after_a_timeout(monkeypatch):
    monkeypatch.setattr(observer_client, "CONFIRMATION_TIMEOUT_S", 0.01)
    scene = WideScene("#")
    scene.observer.is_confirmation_pending = True

    async def work() -> None:
        scene.connect()
        assert (scene.client.wide, scene.reasons) == (("#",), [])
        scene.become(complete=False)
        await until(lambda: bool(scene.reasons))
        scene.become(complete=False)
        scene.observer.is_confirmation_pending = False
        scene.become(complete=True)

    run(work)
    assert scene.reasons == ["something is unknown", ""]


@pytest.mark.parametrize("is_complete", [True, False])
def test_matching_or_contradicting_counters_end_the_wait(is_complete):
    scene = WideScene("#")
    scene.observer.is_confirmation_pending = True

    def work() -> None:
        scene.connect()
        scene.observer.is_confirmation_pending = False
        scene.become(complete=is_complete)

    run(work)
    assert scene.reasons == ([] if is_complete else ["something is unknown"])
    assert scene.client._confirmation_timer is None  # noqa: SLF001


def test_wide_filters_are_announced_while_subscriptions_are_unknown():
    scene = WideScene("#", "x")

    def work() -> None:
        scene.connect()
        assert (scene.fed, scene.client.wide) == ([InterestChanged(("#", "x"))], ("#", "x"))
        scene.become(complete=True)
        scene.become(complete=True)
        scene.become(complete=False)

    run(work)
    assert scene.fed[1:] == [InterestChanged((), ("#", "x")), InterestChanged(("#", "x"))]
    assert scene.reasons == ["something is unknown", "", "something is unknown"]


def test_wide_filter_with_a_subscriber_stays():
    scene = WideScene("a", "x")

    def work() -> None:
        scene.connect()
        scene.become(complete=True)
        scene.observer.names = ()
        scene.receive(b"-a")
        scene.become(complete=False)
        scene.observer.names = ("x",)
        scene.receive(b"+x")
        scene.become(complete=True)

    run(work)
    assert scene.fed == [
        InterestChanged(("x",)),
        InterestChanged((), ("x",)),
        InterestChanged((), ("a",)),
        InterestChanged(("a", "x")),
        InterestChanged((), ("a",)),
    ]


def test_interest_is_not_widened_before_history_read():
    scene = WideScene("#", histories=[ListHistory("history")])

    async def work() -> None:
        scene.connect()
        assert (scene.fed, scene.client.wide) == ([], ())
        await until(lambda: scene.fed, "reported")

    run(work)
    assert scene.fed == [InterestChanged(("r",)), InterestChanged(("#",))]


def test_slow_history_read_does_not_delay_wide_interest(monkeypatch):
    class Endless:
        async def read(self) -> str:
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    monkeypatch.setattr(observer_client, "SETTLE_MAX_S", 0.01)
    scene = WideScene("#", histories=[Endless()])

    async def work() -> None:
        scene.connect()
        await until(lambda: scene.client.wide, "wide")
        scene.client.stop()

    run(work)
    assert scene.fed == [InterestChanged(("#",))]


def test_wide_interest_survives_restart_until_state_is_complete():
    scene = WideScene("#")

    def work() -> None:
        scene.connect()
        again = WideScene("#", histories=[ListHistory("history")])
        again.client.restore(scene.client.snapshot())
        assert again.fed == [InterestChanged(("saved", "#"))]
        again.observer.is_complete, again.observer.incomplete_reason = True, ""
        again.client.start()
        again.connect()
        assert again.client.wide == ("#",)
        again.client.stop()

    run(work)


def test_broker_without_log_widens_interest(monkeypatch):
    monkeypatch.setattr(observer_client, "LOG_TIMEOUT_S", 0.01)
    scene = WideScene("#")

    async def work() -> None:
        scene.observer.is_complete, scene.observer.incomplete_reason = True, ""
        scene.connect()
        assert (scene.client.complete, scene.client.wide) == (True, ())
        await until(lambda: scene.client.wide, "wide")
        assert (scene.client.complete, scene.client.wide) == (False, ("#",))
        scene.receive(b"+a")
        assert (scene.client.complete, scene.client.wide) == (True, ())

    run(work)
    assert "the broker sends no log" in scene.reasons[0]
    assert scene.reasons[1:] == [""]


def test_refused_counters_do_not_widen_interest():
    scene = Scene("$SYS/broker/subscriptions/count")
    run(lambda: scene.connect(0x87))
    assert scene.found == []


def test_extra_topics_of_an_observer_are_subscribed_once():
    class Asking(ListObserver):
        def extra_subscriptions(self) -> tuple[str, ...]:
            return ("extra",)

    scene = Scene(LOG, histories=[ListHistory("history")])
    scene.client.observer = Asking(LOG)

    async def work() -> None:
        scene.broker.on_effect(CONNECTED)
        extra = (packets.Subscription("extra"),)
        scene.receive(b"+a", b"+b")
        scene.broker.on_effect(effects.Subscribed(extra, b"\x00"))
        asked = [order for order in scene.broker.orders if order == inputs.Subscribe(extra)]
        assert len(asked) == 1
        assert scene.client._resync_task is None  # noqa: SLF001
        scene.client.stop()

    run(work)
