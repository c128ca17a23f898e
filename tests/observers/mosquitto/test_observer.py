"""The Mosquitto observer: lines, counts, bridges, and sources of earlier subscriptions."""

import json

import pytest
from tests.agent.broker.model import (
    BYTES_SENT,
    ERROR,
    NOTICE,
    PLAIN,
    SHARED,
    SUBSCRIBE,
    UNSUBSCRIBE,
    UPTIME,
    VERSION,
    stamped,
)

from hansa.errors import UsageError
from hansa.observers.base import (
    NO_CHANGE,
    BridgeDetected,
    BrokerDroppedPublications,
    FilterNotAnnounced,
    LineNotUnderstood,
    ObservationComplete,
    ObservationIncomplete,
    ObserverOutput,
    OversizedPublicationSkipped,
    ResyncFailed,
    SubscriptionCountMismatch,
)
from hansa.observers.mosquitto import drops
from hansa.observers.mosquitto import observer as mosquitto_observer
from hansa.observers.mosquitto.database import RESTORED_MARK
from hansa.observers.mosquitto.history import (
    OTHER_FORMAT,
    OTHER_LOG,
    RELOADED,
    RESTORED,
    WITHOUT_SUBSCRIPTIONS,
)
from hansa.observers.mosquitto.observer import LINES_DROPPED, MosquittoObserver
from hansa.protocol.topics import matches

BEFORE = "what was subscribed before the observer came is unknown"


class ObserverDriver:
    """An observer, with methods that send it log lines and counts."""

    def __init__(self, stamp: str = "1794789623: ", has_uptime: bool = True) -> None:
        self.observer = MosquittoObserver("hansa-")
        self.stamp = stamp
        self._has_uptime = has_uptime
        self.connect()

    def connect(self) -> None:
        """Connect and subscribe; the first lines are about that."""
        self.observer.on_connected(session_lost=True, now=0.0)
        for topic in self.observer.topics_to_subscribe():
            if topic == UPTIME and self._has_uptime:
                self.send(UPTIME, b"7 seconds")  # retained
            self.subscribe(f"hansa-w 0 {topic}")

    def send(self, topic: str, payload: bytes) -> ObserverOutput:
        return self.observer.receive_publication(topic, payload, now=0.0)

    def subscribe(self, line: str) -> ObserverOutput:
        return self.send(SUBSCRIBE, (self.stamp + line).encode())

    def unsubscribe(self, line: str) -> ObserverOutput:
        return self.send(UNSUBSCRIBE, (self.stamp + line).encode())

    def notice(self, line: str) -> ObserverOutput:
        return self.send(NOTICE, (self.stamp + line).encode())

    def connected(self, client: str, how: str = "p2, c1, k60") -> ObserverOutput:
        return self.notice(f"New client connected from 127.0.0.1:1 as {client} ({how}).")

    def count(self, plain: int, shared: int = 0) -> ObserverOutput:
        """Publish a burst of counts; return the output of its last message."""
        self.send(UPTIME, b"9 seconds")
        self.send(PLAIN, str(plain).encode())
        return self.send(SHARED, str(shared).encode())


@pytest.fixture
def driver() -> ObserverDriver:
    return ObserverDriver()


@pytest.fixture
def complete_driver(driver: ObserverDriver) -> ObserverDriver:
    assert driver.count(OWN_COUNT).findings == (ObservationComplete(),)
    return driver


OWN_COUNT = len(MosquittoObserver("hansa-").topics_to_subscribe())


def test_log_topics_are_subscribed_first_and_uptime_last():
    topics = MosquittoObserver("hansa-").topics_to_subscribe()
    assert topics == (
        "$SYS/broker/log/M/subscribe",
        "$SYS/broker/log/M/unsubscribe",
        "$SYS/broker/log/N",
        "$SYS/broker/log/E",
        "$SYS/broker/subscriptions/count",
        "$SYS/broker/shared_subscriptions/count",
        "$SYS/broker/publish/messages/dropped",
        "$SYS/broker/version",
        "$SYS/broker/connection/+/state",
        "$SYS/broker/bytes/sent",
        "$SYS/broker/uptime",
    )


def test_own_client_prefix_must_not_be_empty():
    with pytest.raises(ValueError, match="every client"):
        MosquittoObserver("")


# ---------------------------------------------------------------- lines


def test_client_subscribes_unsubscribes_and_disconnects(driver):
    assert driver.connected("bob") == NO_CHANGE
    assert driver.subscribe("bob 1 a/+") == ObserverOutput(added=("a/+",))
    assert driver.subscribe("bob 0 a/+") == NO_CHANGE
    assert driver.subscribe("bob 0 $share/g/b") == ObserverOutput(added=("$share/g/b",))
    assert driver.unsubscribe("bob a/+") == ObserverOutput(removed=("a/+",))
    assert driver.observer.subscribed_filters() == ("$share/g/b",)
    assert driver.notice("Client bob disconnected.") == ObserverOutput(removed=("$share/g/b",))


def test_takeover_in_2_0_is_read_from_error_line(driver):
    driver.connected("bob", "p2, c0, k60")
    driver.subscribe("bob 1 a")
    assert (
        driver.send(ERROR, stamped("Client bob already connected, closing old connection."))
        == NO_CHANGE
    )
    assert driver.connected("bob", "p2, c0, k60") == NO_CHANGE
    driver.connected("bob", "p2, c1, k60")
    assert driver.observer.subscribed_filters() == ()


def test_timed_session_stays_until_it_expires(driver):
    driver.connected("bob", "p5, c1, k60")
    driver.subscribe("bob 1 a")
    assert driver.notice("Client bob closed its connection.") == NO_CHANGE
    assert driver.observer.uncertain_count == 1
    assert driver.notice("Expiring client bob due to timeout.") == ObserverOutput(removed=("a",))


def test_subscriptions_of_own_clients_are_not_announced(driver):
    assert driver.connected("hansa-1") == NO_CHANGE
    assert driver.subscribe("hansa-1 2 a/#") == NO_CHANGE
    assert driver.observer.subscribed_filters() == ()


def test_local_filters_are_not_announced(driver):
    assert driver.subscribe("bob 1 $SYS/#") == NO_CHANGE


def test_filter_that_cannot_be_announced_is_reported(driver):
    (finding,) = driver.subscribe("bob 1 " + "a/" * 40).findings
    assert isinstance(finding, FilterNotAnnounced)


@pytest.mark.parametrize(
    "stamp",
    ["", "1794789623: ", "2026-01-09T07:00:00+0100: ", "Mon Nov  9 07:00:00 2026: ", "mosquitto: "],
)
def test_timestamp_format_is_learned_from_first_line(stamp):
    driver = ObserverDriver(stamp)
    driver.connected("bob")
    assert driver.subscribe("bob 1 a") == ObserverOutput(added=("a",))
    assert driver.observer.unparsed_count == 0


def test_line_with_other_timestamp_format_is_not_parsed(complete_driver):
    change = complete_driver.send(SUBSCRIBE, b"bob 1 a")
    reason = "it does not begin with a timestamp as before"
    assert change.findings == (
        LineNotUnderstood("bob 1 a", reason),
        ObservationIncomplete(f"a line of the log could not be read: {reason}"),
    )
    assert complete_driver.observer.unparsed_count == 1


def test_timestamp_format_is_learned_on_each_connection(driver):
    driver.stamp = ""
    driver.connect()
    assert driver.subscribe("bob 1 a") == ObserverOutput(added=("a",))


def test_truncated_line_leaves_gap_while_client_is_connected(complete_driver):
    complete_driver.connected("bob")
    line = complete_driver.stamp + "bob 1 " + "x" * 1200
    (finding,) = complete_driver.send(SUBSCRIBE, line.encode()[:999]).findings
    assert finding == ObservationIncomplete("filters that are too long for a line of the log")
    assert complete_driver.observer.subscribed_filters() == ()
    assert complete_driver.notice("Client bob disconnected.").findings == (ObservationComplete(),)


def test_truncated_connection_line_is_not_parsed(complete_driver):
    line = complete_driver.stamp + "New client connected from h:1 as " + "x" * 1200
    change = complete_driver.send(NOTICE, line.encode()[:999])
    assert [type(finding) for finding in change.findings] == [
        LineNotUnderstood,
        ObservationIncomplete,
    ]


def test_lines_dropped_by_broker_leave_gap(complete_driver):
    assert (
        complete_driver.notice("Outgoing messages are being dropped for client bob.") == NO_CHANGE
    )
    assert (
        complete_driver.notice(
            "Outgoing messages are being dropped for client hansa-agent."
        ).findings
        == ()
    )
    assert complete_driver.notice(
        "Outgoing messages are being dropped for client hansa-w."
    ).findings == (ObservationIncomplete(LINES_DROPPED),)


def test_dropped_lines_are_not_hidden_by_an_equal_count(complete_driver):
    """Lost: that bob left, and that eve subscribed."""
    complete_driver.connected("bob")
    complete_driver.subscribe("bob 1 a")
    complete_driver.notice("Outgoing messages are being dropped for client hansa-w.")
    complete_driver.count(OWN_COUNT + 1)
    assert not complete_driver.observer.is_complete


DROPPED = "$SYS/broker/publish/messages/dropped"


def test_lines_dropped_from_a_long_queue_leave_gap(complete_driver):
    """The line that names the agent is dropped, too; only the counter shows it."""
    complete_driver.send(DROPPED, b"0")
    complete_driver.connected("bob")
    for number in range(drops.BACKLOG_MIN):
        complete_driver.subscribe(f"bob 1 a/{number}")
    complete_driver.send(UPTIME, b"19 seconds")
    assert complete_driver.send(DROPPED, b"5").findings == (
        BrokerDroppedPublications(5, 5),
        ObservationIncomplete(LINES_DROPPED),
    )
    complete_driver.send(PLAIN, str(OWN_COUNT + drops.BACKLOG_MIN).encode())
    assert not complete_driver.observer.is_complete


def test_messages_dropped_for_other_clients_leave_no_gap(complete_driver):
    """Nothing was queued for the agent: neither slow lines, nor those of an earlier sample."""
    complete_driver.connected("bob")
    for number in range(drops.BACKLOG_MIN):
        line = f"{complete_driver.stamp}bob 1 a/{number}".encode()
        complete_driver.observer.receive_publication(SUBSCRIBE, line, now=number * 0.01)
    complete_driver.send(DROPPED, b"5")
    assert complete_driver.observer.is_complete
    for number in range(drops.BACKLOG_MIN):
        complete_driver.subscribe(f"bob 1 b/{number}")
    complete_driver.count(OWN_COUNT + 2 * drops.BACKLOG_MIN)
    for topic, value in ((UPTIME, b"29 seconds"), (UPTIME, b"39 seconds"), (DROPPED, b"7")):
        complete_driver.observer.receive_publication(topic, value, now=60.0)
    assert complete_driver.observer.is_complete


def test_count_proves_nothing_without_lines_about_connections(driver):
    """bob came before; ann subscribed and left, which was not logged."""
    driver.subscribe("ann 1 a")
    driver.count(OWN_COUNT + 1)
    assert not driver.observer.is_complete
    driver.connected("eve")
    driver.count(OWN_COUNT + 1)
    assert driver.observer.is_complete


def test_publication_withheld_by_the_broker_is_reported(complete_driver):
    line = "Dropping too large outgoing PUBLISH for {} (2097163 bytes)"
    assert complete_driver.notice(line.format("bob")) == NO_CHANGE
    assert complete_driver.notice(line.format("hansa-a")).findings == (
        OversizedPublicationSkipped(2_097_163),
    )


def test_messages_dropped_by_the_broker_are_reported_including_earlier_ones(complete_driver):
    dropped = "$SYS/broker/publish/messages/dropped"
    assert complete_driver.send(dropped, b"0") == NO_CHANGE
    assert complete_driver.send(dropped, b"5").findings == (BrokerDroppedPublications(5, 5),)
    assert complete_driver.send(dropped, b"5") == NO_CHANGE
    assert complete_driver.send(dropped, b"7").findings == (BrokerDroppedPublications(2, 7),)
    assert complete_driver.send(dropped, b"3").findings == (
        BrokerDroppedPublications(3, 3),
    )  # the count restarted
    assert complete_driver.send(dropped, b"many") == NO_CHANGE


def test_dropped_counter_arrives_within_a_burst_of_counts(complete_driver):
    complete_driver.send(UPTIME, b"9 seconds")
    assert complete_driver.send("$SYS/broker/publish/messages/dropped", b"0") == NO_CHANGE
    assert complete_driver.subscribe("alice 1 a").added == ("a",)
    assert complete_driver.count(OWN_COUNT + 1) == NO_CHANGE


def test_version_is_stored_and_other_topics_are_ignored(driver):
    assert driver.send(VERSION, b"mosquitto version 2.0.11") == NO_CHANGE
    assert driver.observer.version == "mosquitto version 2.0.11"
    assert driver.send("$SYS/broker/else", b"1") == NO_CHANGE


# ---------------------------------------------------------------- bridges


def test_bridge_is_reported_once(driver):
    line = "New bridge connected from 10.0.0.1:1 as north.bridge (p2, c0, k60)."
    assert driver.notice(line).findings == (BridgeDetected("north.bridge", is_up=True),)
    assert driver.notice(line) == NO_CHANGE
    topic = "$SYS/broker/connection/north/bridge/state"
    assert driver.send(topic, b"1").findings == (BridgeDetected("north/bridge", is_up=True),)
    assert driver.send(topic, b"0").findings == (BridgeDetected("north/bridge", is_up=False),)
    assert driver.send(topic, b"0") == NO_CHANGE


def test_own_client_may_connect_like_a_bridge(driver):
    line = "New bridge connected from 127.0.0.1:1 as hansa-1 (p2, c0, k60)."
    assert driver.notice(line) == NO_CHANGE


def test_memory_of_bridges_is_bounded(driver, monkeypatch):
    monkeypatch.setattr(mosquitto_observer, "BRIDGES_MAX", 1)
    driver.send("$SYS/broker/connection/a/state", b"1")
    for _ in range(2):
        assert driver.send("$SYS/broker/connection/b/state", b"1").findings


# ---------------------------------------------------------------- counts


def test_observer_is_incomplete_until_counts_confirm(driver):
    assert (driver.observer.is_complete, driver.observer.incomplete_reason) == (False, BEFORE)
    assert driver.count(OWN_COUNT).findings == (ObservationComplete(),)
    assert (driver.observer.is_complete, driver.observer.incomplete_reason) == (True, "")


def test_retained_counts_do_not_confirm():
    observer = MosquittoObserver("hansa-")
    observer.on_connected(session_lost=True, now=0.0)
    for topic, payload in ((PLAIN, b"0"), (SHARED, b"0"), (UPTIME, b"3 seconds")):
        assert observer.receive_publication(topic, payload, now=0.0) == NO_CHANGE
    assert observer.receive_publication(NOTICE, b"any line", now=0.0) == NO_CHANGE
    assert not observer.is_complete


def test_unchanged_count_stays_valid(driver):
    driver.send(PLAIN, str(OWN_COUNT).encode())
    driver.send(SHARED, b"0")
    assert driver.send(UPTIME, b"9 seconds") == NO_CHANGE
    assert driver.connected("bob").findings == (ObservationComplete(),)


def test_count_applies_to_time_of_its_burst(driver):
    """A line after the burst must not contradict a count of the burst."""
    driver.send(SHARED, b"0")
    driver.send(UPTIME, b"9 seconds")
    driver.send(PLAIN, str(OWN_COUNT).encode())
    change = driver.subscribe("bob 1 a")
    assert change == ObserverOutput(added=("a",), findings=(ObservationComplete(),))


def test_unlogged_subscriptions_are_a_drift(complete_driver):
    complete_driver.send(UPTIME, b"19 seconds")
    assert complete_driver.send(PLAIN, str(OWN_COUNT + 2).encode()).findings == (
        SubscriptionCountMismatch("subscriptions", known=OWN_COUNT, counted=OWN_COUNT + 2),
        ObservationIncomplete("the broker counts 2 subscriptions that the agent does not know"),
    )
    assert complete_driver.connected("bob") == NO_CHANGE
    complete_driver.count(OWN_COUNT)
    assert not complete_driver.observer.is_complete
    complete_driver.count(OWN_COUNT)
    assert complete_driver.observer.is_complete


def test_unknown_subscription_is_not_attributed_to_own_reader(driver):
    """The session of an MQTT 5 client may outlive its connection, but not that of our readers: the
    unknown subscription must not be attributed to the reader."""
    driver.observer.begin_resync(now=0.0)
    driver.observer.resync(HISTORY + OWN_LINES, now=0.0)
    driver.connected("hansa-reader", "p5, c1, k60")
    driver.subscribe("hansa-reader 0 a")
    driver.notice("Client hansa-reader disconnected.")
    driver.notice("Client b b disconnected.")
    driver.count(OWN_COUNT + 1)
    driver.count(OWN_COUNT + 1)
    assert not driver.observer.is_complete


def test_burst_ends_with_bytes_sent(driver):
    """An unchanged count is not sent: it is valid at the end of the burst."""
    driver.send(PLAIN, str(OWN_COUNT).encode())
    driver.send(SHARED, b"0")
    driver.send(UPTIME, b"9 seconds")
    assert driver.send(BYTES_SENT, b"1234").findings == (ObservationComplete(),)


def test_count_that_is_no_number_is_ignored(driver):
    assert isinstance(driver.send(PLAIN, b"many").findings[0], LineNotUnderstood)


def test_own_resumed_session_can_be_declared(driver):
    driver.count(OWN_COUNT + 2)
    assert not driver.observer.is_complete
    assert driver.observer.declare("hansa-1", ("a", "b")) == NO_CHANGE
    driver.count(OWN_COUNT + 2)
    driver.count(OWN_COUNT + 2)
    assert driver.observer.is_complete
    assert driver.observer.subscribed_filters() == ()


# ---------------------------------------------------------------- reconnection and snapshots


def test_reconnection_makes_known_subscriptions_uncertain(complete_driver):
    complete_driver.connected("bob")
    complete_driver.subscribe("bob 1 a")
    change = complete_driver.observer.on_connected(session_lost=True, now=0.0)
    assert change == ObserverOutput(findings=(ObservationIncomplete(BEFORE),))
    assert complete_driver.observer.subscribed_filters() == ("a",)
    complete_driver.connect()
    assert complete_driver.notice("Client bob disconnected.") == NO_CHANGE
    assert complete_driver.count(OWN_COUNT) == ObserverOutput(findings=(ObservationComplete(),))
    assert complete_driver.observer.subscribed_filters() == ()


def test_snapshot_survives_json(driver):
    driver.connected("bob")
    driver.subscribe("bob 1 b")
    driver.subscribe("bob 1 a")
    saved = json.loads(json.dumps(driver.observer.snapshot()))
    other = MosquittoObserver("hansa-")
    assert other.restore(saved, now=0.0) == ObserverOutput(added=("a", "b"))
    assert not other.is_complete
    assert other.snapshot() == saved


@pytest.mark.parametrize(
    "saved",
    [{}, {"format": 1}, {"format": 1, "sessions": {"bob": "a"}}, {"format": 2, "sessions": {}}],
)
def test_other_snapshots_are_refused(saved):
    with pytest.raises(UsageError):
        MosquittoObserver("hansa-").restore(saved, now=0.0)


# ---------------------------------------------------------------- resync

TREE = """\
    
      
        a (bob, 1)
        b (bob, 0) (hansa-w, 0)
    $SYS
    
"""  # noqa: W293

HISTORY = """\
1794789600: bob 1 lost
1794789600: mosquitto version 2.0.11 starting
1794789600: Config loaded from /etc/mosquitto/mosquitto.conf.
1794789600: New connection from 127.0.0.1:36046 on port 1884.
1794789600: New client connected from 127.0.0.1:36046 as b b (p2, c1, k30).
1794789600: b b 1 a
1794789600: b b 1 gone
1794789600: b b gone
"""


def test_tree_restores_earlier_subscriptions(driver):
    driver.observer.begin_resync(now=0.0)
    change = driver.observer.resync(TREE, now=0.0)
    assert change == ObserverOutput(added=("a", "b"), findings=(ObservationComplete(),))


def test_log_since_start_restores_earlier_subscriptions(driver):
    driver.observer.begin_resync(now=0.0)
    change = driver.observer.resync(HISTORY + OWN_LINES, now=0.0)
    assert change == ObserverOutput(added=("lost", "a"))
    assert driver.count(OWN_COUNT + 1).findings == (ObservationComplete(),)
    assert driver.observer.subscribed_filters() == ("a",)
    assert driver.notice("Client b b disconnected.") == ObserverOutput(removed=("a",))


def test_log_without_start_adds_subscriptions_but_does_not_confirm(driver):
    driver.observer.begin_resync(now=0.0)
    text = HISTORY.partition("Config")[2] + f"{driver.stamp}hansa-w 0 {UPTIME}\n"
    # `b b gone` may be about a client `b` from before the log
    assert driver.observer.resync(text, now=0.0) == ObserverOutput(added=("a", "gone"))
    assert (
        driver.observer.incomplete_reason
        == "the log does not reach back to the start of the broker"
    )
    assert driver.observer.uncertain_count == 2 + OWN_COUNT


def test_truncated_connection_in_log_leaves_gap(driver):
    driver.observer.begin_resync(now=0.0)
    line = "1794789600: New client connected from h:1 as " + "x" * 1200
    driver.observer.resync(HISTORY + line[:999] + "\n", now=0.0)
    assert not driver.observer.is_complete


@pytest.mark.parametrize("text", [TREE, HISTORY])
def test_lines_received_during_resync_are_applied_after_it(driver, text):
    driver.observer.begin_resync(now=0.0)
    driver.connected("eve")
    driver.subscribe("eve 1 new")
    driver.subscribe("bob 1 a")
    driver.unsubscribe("bob a")
    driver.connected("b b")
    driver.observer.resync(text, now=0.0)
    assert "new" in driver.observer.subscribed_filters()
    assert "a" not in driver.observer.subscribed_filters()


@pytest.mark.parametrize("text", ["", "\n", TREE.partition("    $SYS")[0]])
def test_incomplete_input_is_ignored(driver, text):
    driver.subscribe("bob 1 a")
    driver.observer.begin_resync(now=0.0)
    (finding,) = driver.observer.resync(text, now=0.0).findings
    assert isinstance(finding, ResyncFailed)
    assert driver.observer.subscribed_filters() == ("a",)


def test_resync_begun_on_other_connection_fails(driver):
    driver.observer.begin_resync(now=0.0)
    driver.connect()
    (finding,) = driver.observer.resync(TREE, now=0.0).findings
    assert isinstance(finding, ResyncFailed)


def test_resync_fails_if_too_many_lines_arrive(driver, monkeypatch):
    monkeypatch.setattr(mosquitto_observer, "BUFFERED_LINES_MAX", 1)
    driver.observer.begin_resync(now=0.0)
    driver.connected("bob")
    driver.connected("eve")
    (finding,) = driver.observer.resync(TREE, now=0.0).findings
    assert isinstance(finding, ResyncFailed)


def test_information_log_is_not_subscribed():
    """If the broker saves on every change, each of these lines would cause the next."""
    asked = MosquittoObserver("hansa-").topics_to_subscribe()
    assert not [name for name in asked if matches(name, "$SYS/broker/log/I")]


# ---------------------------------------------------------------- completeness from a log

STARTED = "1794789600: mosquitto version 2.0.11 starting\n"
STOPPED = "1794789650: mosquitto version 2.0.11 terminating\n"
RELOADING = "1794789610: Reloading config.\n"
OWN_LINES = "".join(
    f"1794789620: hansa-w 0 {topic}\n"
    for topic in MosquittoObserver("hansa-").topics_to_subscribe()
)

LATER_LINES = OWN_LINES.replace("1794789620", "1794789640")


class LateObserver:
    """An observer that connects at 20 s and receives the counts retained before."""

    def __init__(
        self,
        plain: int,
        uptime: int,
        saved: dict[str, object] | None = None,
        shared: int | None = 0,
        at: str = "1794789620",
    ) -> None:
        self.observer = MosquittoObserver("hansa-")
        if saved is not None:
            self.observer.restore(saved, now=0.0)
        self.observer.on_connected(session_lost=True, now=0.0)
        for topic in self.observer.topics_to_subscribe():
            self.observer.receive_publication(
                SUBSCRIBE, f"{at}: hansa-w 0 {topic}".encode(), now=0.0
            )
        for topic, counted in ((PLAIN, plain), (SHARED, shared)):
            if counted is not None:
                self.observer.receive_publication(topic, str(counted).encode(), now=0.0)
        self.observer.receive_publication(UPTIME, b"%d seconds" % uptime, now=0.0)

    def read(self, text: str) -> "LateObserver":
        self.observer.begin_resync(now=0.0)
        self.observer.resync(text, now=0.0)
        return self

    def count(self, plain: int) -> "LateObserver":
        self.observer.receive_publication(UPTIME, b"99 seconds", now=0.0)
        self.observer.receive_publication(PLAIN, str(plain).encode(), now=0.0)
        self.observer.receive_publication(BYTES_SENT, b"1", now=0.0)
        return self


def test_retained_counts_confirm_a_log_since_the_start_at_once():
    text = STARTED + "1794789605: bob 1 a\n" + OWN_LINES
    assert LateObserver(plain=0, uptime=0).read(text).observer.is_complete
    assert LateObserver(plain=1, uptime=10).read(text).observer.is_complete
    assert not LateObserver(plain=2, uptime=10).read(text).observer.is_complete


def test_count_in_same_second_as_line_confirms_only_lower_number():
    text = STARTED + "1794789605: bob 1 a\n" + OWN_LINES
    assert LateObserver(plain=0, uptime=5).read(text).observer.is_complete
    assert not LateObserver(plain=1, uptime=5).read(text).observer.is_complete


def test_restored_session_is_not_mistaken_for_disconnected_one():
    """The count matches certain and uncertain subscriptions, but may be of another client."""
    text = STARTED + (
        "1794789601: New client connected from h:1 as eve (p5, c1, k60).\n"
        "1794789601: eve 1 e\n"
        "1794789602: Client eve disconnected.\n"
    )
    late = LateObserver(plain=1, uptime=0).read(text + OWN_LINES)
    assert late.observer.incomplete_reason == RESTORED
    assert not late.count(OWN_COUNT + 1).observer.is_complete
    assert late.count(OWN_COUNT).observer.is_complete


def test_reload_before_first_subscription_line_leaves_gap():
    late = LateObserver(plain=0, uptime=0).read(STARTED + RELOADING + OWN_LINES)
    assert late.observer.incomplete_reason == RELOADED
    late.count(OWN_COUNT + 1)
    assert "counts 1 subscriptions that the agent does not know" in late.observer.incomplete_reason
    for _ in range(2):
        late.count(OWN_COUNT)
    assert late.observer.is_complete


def test_missing_retained_counts_are_prompted():
    """Mosquitto retains a count for 60 s after a change, and publishes it on change."""
    observer = MosquittoObserver("hansa-")
    observer.on_connected(session_lost=True, now=0.0)
    observer.receive_publication(PLAIN, b"0", now=0.0)
    assert observer.extra_subscriptions() == ()
    observer.receive_publication(UPTIME, b"70 seconds", now=0.0)
    assert observer.extra_subscriptions() == ("$share/hansa/$SYS/hansa/count/0",)
    observer.on_connected(session_lost=True, now=0.0)
    observer.receive_publication(UPTIME, b"70 seconds", now=0.0)
    assert len(observer.extra_subscriptions()) == 2
    observer.handle_timer(now=mosquitto_observer.COUNTS_WAIT_S)
    assert mosquitto_observer.NO_COUNTS not in observer.incomplete_reason


def test_bursts_without_count_prompt_again_up_to_limit():
    observer = MosquittoObserver("hansa-")
    observer.on_connected(session_lost=True, now=0.0)
    observer.receive_publication(PLAIN, b"0", now=0.0)
    observer.receive_publication(UPTIME, b"70 seconds", now=0.0)
    for burst in range(2 * mosquitto_observer.PROMPTS_MAX):
        count = min(burst + 1, mosquitto_observer.PROMPTS_MAX)
        names = tuple(f"$share/hansa/$SYS/hansa/count/{number}" for number in range(count))
        assert observer.extra_subscriptions() == names
        observer.receive_publication(UPTIME, b"80 seconds", now=0.0)
        observer.receive_publication(BYTES_SENT, b"1", now=0.0)
    observer.receive_publication(UPTIME, b"90 seconds", now=0.0)
    observer.receive_publication(SHARED, b"8", now=0.0)
    observer.receive_publication(BYTES_SENT, b"1", now=0.0)
    assert len(observer.extra_subscriptions()) == mosquitto_observer.PROMPTS_MAX


def test_missing_count_confirms_only_earlier_knowledge():
    text = STARTED + OWN_LINES
    late = LateObserver(plain=0, uptime=0, shared=None).read(text)
    assert late.observer.incomplete_reason == RESTORED
    saved = complete_before_a_restart(ANCHOR)
    anchored = f"{ANCHOR}\n1794789635: bob 1 b\n{LATER_LINES}"
    assert (
        LateObserver(plain=13, uptime=38, shared=None, saved=saved, at="1794789640")
        .read(anchored)
        .observer.is_complete
    )
    late = LateObserver(plain=14, uptime=38, shared=None, saved=saved, at="1794789640").read(
        anchored
    )
    assert (late.observer.is_complete, late.observer.is_confirmation_pending) == (False, True)
    late.count(15)
    assert (late.observer.is_complete, late.observer.is_confirmation_pending) == (False, False)
    reloaded = anchored.replace(LATER_LINES, "1794789636: Reloading config.\n" + LATER_LINES)
    assert (
        not LateObserver(plain=13, uptime=38, shared=None, saved=saved, at="1794789640")
        .read(reloaded)
        .observer.is_complete
    )


def test_reload_after_subscription_line_leaves_no_gap():
    connected = "1794789605: New client connected from h:1 as bob (p2, c1, k60).\n"
    text = STARTED + connected + "1794789605: bob 1 a\n" + RELOADING + OWN_LINES
    assert LateObserver(plain=1, uptime=12).read(text).observer.is_complete


def test_reload_without_connection_line_makes_subscriptions_uncertain():
    """The end of a session may be missing from the log."""
    text = STARTED + "1794789605: bob 1 a\n" + RELOADING + OWN_LINES
    late = LateObserver(plain=1, uptime=12).read(text)
    assert (late.observer.is_complete, late.observer.uncertain_count) == (False, 1)


def test_log_switched_off_and_on_by_reloads_leaves_gap():
    connected = "17947896{:02}: New client connected from h:1 as {} (p2, c1, k60).\n"
    first = STARTED + connected.format(1, "bob") + "1794789601: bob 1 a\n"
    quiet = first + RELOADING + RELOADING + OWN_LINES
    assert LateObserver(plain=1, uptime=12).read(quiet).observer.is_complete
    hidden = first + RELOADING + connected.format(11, "eve") + RELOADING.replace("10:", "12:")
    late = LateObserver(plain=2, uptime=8).read(hidden + OWN_LINES)
    assert late.observer.incomplete_reason == RELOADED


def test_retained_count_older_than_reload_does_not_confirm():
    text = STARTED + RELOADING + OWN_LINES
    assert not LateObserver(plain=0, uptime=9).read(text).observer.is_complete
    assert LateObserver(plain=0, uptime=13).read(text).observer.is_complete


def test_retained_counts_are_ignored_after_clock_set_back():
    text = STARTED + "1794789605: bob 1 a\n1794789603: bob 1 b\n" + OWN_LINES
    assert not LateObserver(plain=0, uptime=0).read(text).observer.is_complete


def test_retained_count_after_clock_set_forward_needs_as_many_now():
    """ann left after the clock was set; a restored session makes up the number."""
    connected = "1794789601: New client connected from h:1 as ann (p2, c1, k60).\n"
    early = STARTED + connected + "1794789601: ann 1 a\n1794789602: bob 1 b\n"
    own = OWN_LINES.replace("1794789620", "1794889620")
    left = early + "1794889600: Client ann disconnected.\n" + own
    late = LateObserver(plain=2, uptime=1000, at="1794889620").read(left)
    assert late.observer.incomplete_reason == RESTORED
    assert (
        LateObserver(plain=2, uptime=1000, at="1794889620").read(early + own).observer.is_complete
    )


def test_retained_count_from_after_the_connection_is_ignored():
    """The clock was set back while nothing was logged."""
    text = STARTED + "1794789605: bob 1 a\n" + OWN_LINES
    assert not LateObserver(plain=0, uptime=30).read(text).observer.is_complete


def test_log_file_of_another_broker_is_recognised():
    """Or of this one, before it logged to another file: the agent's own lines are missing."""
    text = STARTED + "1794789605: bob 1 a\n" + LATER_LINES
    late = LateObserver(plain=0, uptime=0).read(text)
    assert late.observer.incomplete_reason == OTHER_LOG


def test_reload_may_switch_off_lines_about_connections():
    connected = "1794789601: New client connected from h:1 as bob (p2, c1, k60).\n"
    text = STARTED + connected + "1794789601: bob 1 a\n" + RELOADING
    late = LateObserver(plain=2, uptime=1).read(text + OWN_LINES).count(OWN_COUNT + 1)
    assert not late.observer.is_complete
    again = text + connected.replace("601", "611").replace("bob", "zoe") + OWN_LINES
    late = LateObserver(plain=2, uptime=1).read(again).count(OWN_COUNT + 1)
    assert late.observer.is_complete


def test_lines_with_another_timestamp_format_leave_gap():
    text = STARTED + "2026-11-16T10:00:05: bob 1 a\n" + OWN_LINES
    late = LateObserver(plain=0, uptime=0).read(text)
    assert late.observer.incomplete_reason == OTHER_FORMAT


def test_log_file_without_subscriptions_is_reported():
    late = LateObserver(plain=0, uptime=0).read(STARTED)
    assert late.observer.incomplete_reason == WITHOUT_SUBSCRIPTIONS


def complete_before_a_restart(*lines: str) -> dict[str, object]:
    """Return the snapshot of a complete observer whose last lines were these."""
    first = LateObserver(plain=0, uptime=0).read(STARTED + OWN_LINES)
    assert first.observer.is_complete
    for line in lines:
        first.observer.receive_publication(SUBSCRIBE, line.encode(), now=0.0)
    saved: dict[str, object] = json.loads(json.dumps(first.observer.snapshot()))
    return saved


ANCHOR = "1794789630: bob 1 a"


def test_log_back_to_anchor_is_sufficient():
    saved = complete_before_a_restart(ANCHOR)
    late = LateObserver(plain=13, uptime=38, saved=saved, at="1794789640").read(
        f"{ANCHOR}\n1794789635: bob 1 b\n{LATER_LINES}"
    )
    assert (late.observer.is_complete, late.observer.subscribed_filters()) == (True, ("a", "b"))
    late = LateObserver(plain=14, uptime=38, saved=saved, at="1794789640").read(
        f"{ANCHOR}\n1794789635: bob 1 b\n{LATER_LINES}"
    )
    assert not late.observer.is_complete
    late = LateObserver(plain=13, uptime=38, saved=saved, at="1794789640").read(
        f"1794789635: bob 1 b\n{LATER_LINES}"
    )
    assert (
        late.observer.incomplete_reason == "the log does not reach back to the start of the broker"
    )


def test_count_older_than_anchor_is_already_confirmed():
    saved = complete_before_a_restart(ANCHOR)
    assert (
        LateObserver(plain=0, uptime=0, saved=saved, at="1794789640")
        .read(f"{ANCHOR}\n{LATER_LINES}")
        .observer.is_complete
    )


@pytest.mark.parametrize("start", ["", STARTED], ids=["cut", "from the start"])
@pytest.mark.parametrize(("stopped", "is_complete"), [(STOPPED, True), ("", False)])
def test_broker_stopped_in_order_restores_known_sessions(stopped, is_complete, start):
    """A killed broker restores an earlier saved state."""
    saved = complete_before_a_restart(ANCHOR)
    started = "1794789660: mosquitto version 2.0.11 starting\n"
    own = OWN_LINES.replace("1794789620", "1794789670")
    text = f"{start}{ANCHOR}\n{stopped}{started}{own}"
    late = LateObserver(plain=1, uptime=0, saved=saved, at="1794789670").read(text)
    assert late.observer.is_complete is is_complete
    assert late.observer.subscribed_filters() == ("a",)


@pytest.mark.parametrize("stamp", ["", "10:00:23: "])
def test_line_without_a_date_is_no_anchor(stamp):
    """The log was emptied while the agent was away, and bob subscribed again."""
    driver = ObserverDriver(stamp)
    driver.count(OWN_COUNT)
    driver.connected("bob")
    driver.connected("zoe")
    driver.subscribe("zoe 1 z")
    driver.subscribe("bob 1 a")
    assert driver.observer.is_complete
    saved = driver.observer.snapshot()
    driver = ObserverDriver(stamp)
    driver.observer.restore(saved, now=0.0)
    driver.observer.begin_resync(now=0.0)
    driver.observer.resync(f"{stamp}bob 1 a\n{stamp}hansa-w 0 x\n", now=0.0)
    driver.count(OWN_COUNT + 2)  # bob, and eve in place of zoe
    assert not driver.observer.is_complete


@pytest.mark.parametrize("anchor", [None, 7, {}, {"line": 7}, {"line": "x", "started_at": "y"}])
def test_invalid_anchor_in_snapshot_is_ignored(anchor):
    saved = complete_before_a_restart(ANCHOR)
    late = LateObserver(plain=0, uptime=0, saved={**saved, "anchor": anchor}).read(f"{ANCHOR}\n")
    assert (late.observer.is_complete, late.observer.subscribed_filters()) == (False, ("a",))


# ---------------------------------------------------------------- without counts


def without_counts(text: str) -> MosquittoObserver:
    driver = ObserverDriver(stamp="1794789620: ", has_uptime=False)
    driver.observer.begin_resync(now=0.0)
    driver.observer.resync(text, now=0.0)
    assert not driver.observer.is_complete
    assert driver.observer.next_deadline() == mosquitto_observer.COUNTS_WAIT_S
    driver.observer.handle_timer(now=mosquitto_observer.COUNTS_WAIT_S)
    assert driver.observer.next_deadline() is None
    return driver.observer


RESTORED_LINE = f'{RESTORED_MARK}{{"ann": ["a"]}}\n'


def test_log_since_start_is_complete_without_counts_if_restored_sessions_are_known():
    observer = without_counts(STARTED + RESTORED_LINE + OWN_LINES)
    assert (observer.is_complete, observer.subscribed_filters()) == (True, ("a",))


def test_restored_sessions_close_no_other_gap():
    """The start of the broker is not in the log, but a line that looks like it."""
    text = "1794789610: bob 1 mosquitto version 2.0.11 starting\n" + RESTORED_LINE + OWN_LINES
    assert not without_counts(text).is_complete


@pytest.mark.parametrize(
    "text",
    [
        OWN_LINES,
        STARTED + RESTORED_LINE + RELOADING + OWN_LINES,
        STARTED + OWN_LINES,
        STARTED + RESTORED_LINE + "1794789601: Connecting bridge (step 1) b (h:1)\n" + OWN_LINES,
    ],
    ids=["no start", "reload", "restored sessions", "bridge"],
)
def test_log_with_gap_is_incomplete_without_counts(text):
    observer = without_counts(text)
    assert observer.incomplete_reason.endswith(mosquitto_observer.NO_COUNTS)


def test_log_read_later_is_complete_without_counts():
    observer = without_counts(OWN_LINES)
    observer.begin_resync(now=9.0)
    observer.resync(STARTED + RESTORED_LINE + OWN_LINES, now=9.0)
    assert observer.is_complete
