"""Random interleavings of client sessions, seen through the log, against a model of the broker.

Always: every subscribed filter is announced if the observer was connected from the start or reports
itself complete. Without uncertainty: no other filter is announced.
"""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.agent.broker.model import OWN, VERSIONS, Model

from hansa.observers.mosquitto.observer import MosquittoObserver

PLAIN_NAMES = st.sampled_from(["ann", "c c"])
NAMES_OF_NOBODY = st.sampled_from(["ann", "10.0.0.9"])
EVIL_NAMES = st.sampled_from(
    ["a", "a 1 b", "a 1 b 0 x", "a disconnected:", "Client a", "mosquitto"]
)
HOSTILE_NAMES = st.one_of(
    EVIL_NAMES,
    st.sampled_from(
        [
            "b",
            "b 0",
            "b 0 x",
            "b 0 t/1",
            " b",
            "b disconnected: b",
            "b [127.0.0.1:1001]",
            "b already connected, closing old connection.",
            "Expiring client",
            "Expiring client b",
            "Client",
            "Client b",
            "New client connected from h:1 as",
            "b (p1, c1, k9).",
            "1794789600: b",
            "Bad socket read/write on client b",
            "'b', \"b\"",
            "b\u3000\u00e9 1 \U0001f980",
        ]
    ),
)
HOSTILE_FILTERS = [
    "x",
    "0 x",
    "t/1 0 x",
    "1 b 0 x",
    "b due to timeout.",
    "due to timeout.",
    "b disconnected.",
    "b [127.0.0.1:1001] disconnected.",
    "disconnected.",
    "b (p1, c1, k9).",
    "\u00e9, \U0001f980: 'x'",
]
FILTERS = st.sampled_from(["x", "b 0 x", "b disconnected.", "$share/g/x", "$share/h/x/y", "$SYS/x"])
FLAG = st.booleans()
ANY_VERSION = st.sampled_from(VERSIONS)
many = settings(max_examples=300)


def schedules(names, protocols=(3, 4, 5), min_size=0, filters=FILTERS):
    """Lists of steps: an action of a client, and how it connects if necessary."""
    how = st.tuples(st.sampled_from(protocols), FLAG, FLAG)
    step = st.one_of(
        st.tuples(st.just("connect"), names, how),
        st.tuples(st.just("subscribe"), names, how, filters, st.integers(0, 2)),
        st.tuples(st.just("subscribe"), names, how, filters, st.integers(0, 2)),
        st.tuples(st.just("unsubscribe"), names, how, filters),
        st.tuples(st.just("disconnect"), names, how, st.sampled_from(["", "exceeded timeout"])),
        st.tuples(st.just("expire"), names, how),
        st.tuples(st.just("turn_away"), names, how),
        st.tuples(st.just("count")),
        st.tuples(st.just("pass_time"), st.sampled_from([1, 2, 9, 70])),
    )
    return st.lists(step, min_size=min_size, max_size=30)


def play(broker: Model, step) -> None:
    """Perform a step and its preconditions."""
    word, *rest = step
    if word in ("count", "pass_time"):
        getattr(broker, word)(*rest)
        return
    name, how, *rest = rest
    client = broker.clients.get(name)
    if word == "connect":
        broker.connect(name, *how)
    elif word == "turn_away":
        broker.turn_away(name)
    elif word == "expire":
        if client is not None and not client.is_online:
            broker.expire(name)
    else:
        if client is None or not client.is_online:
            broker.connect(name, *how)
        getattr(broker, word)(name, *rest)


def observed(broker: Model) -> MosquittoObserver:
    observer = MosquittoObserver(OWN)
    broker.attach(observer)
    return observer


@many
@given(ANY_VERSION, FLAG, st.one_of(schedules(PLAIN_NAMES), schedules(NAMES_OF_NOBODY)))
def test_observer_connected_from_start_converges_to_exact_interest(version, websockets, steps):
    broker = Model(version, websockets)
    observer = observed(broker)
    for step in steps:
        play(broker, step)
        assert broker.expected_filters() <= set(observer.subscribed_filters())
        if not observer.uncertain_count:
            assert set(observer.subscribed_filters()) == broker.expected_filters()
    finish(broker, observer)
    assert observer.subscribed_filters() == ()


def finish(broker: Model, observer: MosquittoObserver) -> None:
    """Disconnect all clients and publish the counts."""
    for name, client in list(broker.clients.items()):
        if not name.startswith(OWN):
            if client.is_online:
                broker.disconnect(name)
            if client.lasts:
                broker.expire(name)
    for _ in range(2):
        broker.count()
    broker.disconnect(f"{OWN}watch")  # any line ends the burst
    assert observer.is_complete, observer.incomplete_reason


@many
@given(ANY_VERSION, schedules(PLAIN_NAMES, protocols=(3, 4)))
def test_interest_is_exact_at_every_step_with_mqtt_3_only(version, steps):
    """If the log shows all clients since the broker's start, `ann 0 b 0 x` is unambiguous."""
    broker = Model(version)
    observer = observed(broker)
    observer.begin_resync(now=0.0)
    observer.resync(broker.log_file(), now=0.0)
    was_taken_over = False
    for step in steps:
        is_new = step[0] == "connect"
        was_taken_over |= is_new and version == "2.0" and step[1] in broker.clients
        play(broker, step)
        if not was_taken_over:
            assert set(observer.subscribed_filters()) == broker.expected_filters()
        assert broker.expected_filters() <= set(observer.subscribed_filters())


@many
@given(ANY_VERSION, schedules(EVIL_NAMES))
def test_unusual_ids_and_filters_hide_no_interest(version, steps):
    broker = Model(version)
    observer = observed(broker)
    for step in steps:
        play(broker, step)
        assert broker.expected_filters() <= set(observer.subscribed_filters())


HOSTILE_SCHEDULES = schedules(HOSTILE_NAMES, filters=st.sampled_from(HOSTILE_FILTERS))
FILE_SCHEDULES = schedules(
    HOSTILE_NAMES, filters=st.sampled_from([each for each in HOSTILE_FILTERS if each[1:2] != " "])
)
"""In a file, `b 0 x` is read as a grant, not as the end of a subscription to `0 x`."""
MQTT_3 = (3, True, False)


@example(
    version="2.0",
    connected=["b 0 t/1"],
    steps=[("connect", "b", MQTT_3), ("subscribe", "b 0 t/1", MQTT_3, "x", 0)],
).via("the filter of a client that is not known was read as one of another client")
@example(
    version="2.0",
    connected=["b 0"],
    steps=[("subscribe", "b", MQTT_3, "0 x", 0), ("unsubscribe", "b 0", MQTT_3, "x")],
).via("a client that is not known seemed to unsubscribe for another one")
@example(
    version="2.0",
    connected=[],
    steps=[
        ("connect", "b 0", MQTT_3),
        ("subscribe", "b", MQTT_3, "0 x", 0),
        ("unsubscribe", "b 0", MQTT_3, "x"),
    ],
).via("of two known clients the one that had the filter seemed to unsubscribe")
@example(
    version="2.0",
    connected=["b [127.0.0.1:1003]"],
    steps=[
        ("subscribe", "b", MQTT_3, "x", 0),
        ("disconnect", "b [127.0.0.1:1003]", MQTT_3, ""),
    ],
).via("the end of an id was read as an address")
@many
@given(ANY_VERSION, st.lists(HOSTILE_NAMES, max_size=3, unique=True), HOSTILE_SCHEDULES)
def test_clients_that_connected_before_the_observer_hide_no_interest(version, connected, steps):
    broker = Model(version)
    for name in connected:
        broker.connect(name, 3, is_clean=True, lasts=False)
    observer = observed(broker)
    for _ in range(2):
        broker.count()
    for step in steps:
        play(broker, step)
        if observer.is_complete:
            assert broker.expected_filters() <= set(observer.subscribed_filters())


@example(
    version="2.0",
    before=[
        ("subscribe", "b", (3, False, False), "x", 0),
        ("disconnect", "b", (3, False, False), ""),
        ("unsubscribe", "Expiring client", MQTT_3, "b due to timeout."),
    ],
    after=[],
).via("an unsubscription in a file was read as the end of another session")
@many
@given(ANY_VERSION, FILE_SCHEDULES, FILE_SCHEDULES)
def test_hostile_ids_in_a_log_file_hide_no_interest(version, before, after):
    broker = Model(version)
    for step in before:
        play(broker, step)
    observer = observed(broker)
    observer.begin_resync(now=0.0)
    observer.resync(broker.log_file(), now=0.0)
    for step in (("pass_time", 1), *after):
        play(broker, step)
        if observer.is_complete or observer.is_confirmation_pending:
            assert broker.expected_filters() <= set(observer.subscribed_filters())


@many
@given(ANY_VERSION, FLAG, st.lists(schedules(PLAIN_NAMES), min_size=2, max_size=3))
def test_complete_observer_stays_complete_after_absence(version, restarts, parts):
    broker = Model(version)
    observer = MosquittoObserver(OWN)
    for index, steps in enumerate(parts):
        broker.detach()
        if index == 1 and restarts:
            broker.restart()
        for step in steps[: len(steps) // 2]:
            play(broker, step)
        saved = observer.snapshot()
        observer = MosquittoObserver(OWN)
        observer.restore(saved, now=0.0)
        broker.attach(observer)
        for step in steps[len(steps) // 2 :]:
            play(broker, step)
            if observer.is_complete:
                assert broker.expected_filters() <= set(observer.subscribed_filters())
                if not observer.uncertain_count:
                    assert broker.expected_filters() == set(observer.subscribed_filters())


@example(
    version="2.0",
    from_tree=True,
    restarts=False,
    before=[
        ("connect", "c c", (3, True, False)),
        ("subscribe", "ann", (3, False, False), "x", 0),
    ],
    after=[
        ("connect", "ann", (3, False, False)),
        ("connect", "ann", (5, False, False)),
        ("subscribe", "c c", (3, True, False), "b 0 x", 0),
        ("connect", "c c", (3, False, False)),
    ],
).via("what was learned of a session later decided what an earlier line said of it")
@example(
    version="2.0",
    from_tree=False,
    restarts=False,
    before=[
        ("count",),
        ("connect", "ann", (3, True, False)),
        ("subscribe", "c c", (3, False, False), "b 0 x", 0),
    ],
    after=[
        ("subscribe", "ann", (3, False, False), "b 0 x", 0),
        ("disconnect", "ann", (3, False, False), ""),
        ("count",),
        ("connect", "c c", (3, False, False)),
    ],
).via("an id guessed from an ambiguous line was later taken for the client of that line")
@many
@given(ANY_VERSION, FLAG, FLAG, schedules(PLAIN_NAMES), schedules(PLAIN_NAMES))
def test_late_observer_learns_all_from_log_file_or_tree(
    version, from_tree, restarts, before, after
):
    broker = Model(version)
    for step in before[: len(before) // 2]:
        play(broker, step)
    if restarts:
        broker.restart()
    for step in before[len(before) // 2 :]:
        play(broker, step)
    observer = observed(broker)
    observer.begin_resync(now=0.0)
    for step in after[: len(after) // 2]:
        play(broker, step)
    text = broker.tree() if from_tree else broker.log_file()
    for step in after[len(after) // 2 :]:
        play(broker, step)
    observer.resync(text, now=0.0)
    known = {
        name.removeprefix("$share/g/").removeprefix("$share/h/")
        for name in observer.subscribed_filters()
    }
    expected_filters = {
        name.removeprefix("$share/g/").removeprefix("$share/h/")
        for name in broker.expected_filters()
    }
    assert expected_filters <= known
    if not from_tree:
        assert broker.expected_filters() <= set(observer.subscribed_filters())
    if observer.is_complete:
        assert expected_filters <= known
    for _ in range(2):
        broker.count()
    broker.turn_away("nobody")
    if observer.is_complete:
        assert broker.expected_filters() <= set(observer.subscribed_filters())


@example(
    has_saved=False,
    before=[],
    between=[
        ("subscribe", "ann", (3, False, False), "$share/g/x", 0),
        ("count",),
        ("pass_time", 70),
    ],
    after=[],
).via("a subscription ended as the observer subscribed to change a count: it was not published")
@many
@given(FLAG, schedules(PLAIN_NAMES), schedules(PLAIN_NAMES), schedules(PLAIN_NAMES))
def test_observer_is_complete_after_reload_only_if_it_knows_all(has_saved, before, between, after):
    """Subscriptions that were not logged, or restored from disk, are detected."""
    broker = Model("2.0", logs_subscriptions=False)
    for step in before:
        play(broker, step)
    if has_saved:
        broker.restart()
    broker.reload()
    for step in between:
        play(broker, step)
    observer = observed(broker)
    observer.begin_resync(now=0.0)
    observer.resync(broker.log_file(), now=0.0)
    for step in after:
        if observer.is_complete:
            assert broker.expected_filters() <= set(observer.subscribed_filters())
        play(broker, step)
    if observer.is_complete:
        assert broker.expected_filters() <= set(observer.subscribed_filters())
    finish(broker, observer)


@example(
    in_order=False,
    starts_complete=True,
    parts=[
        [("count",), ("subscribe", "c c", (3, False, False), "x", 0)],
        [("connect", "c c", (3, True, False)), ("turn_away", "ann", (3, False, False))],
        [],
        [
            ("turn_away", "ann", (3, False, False)),
            ("subscribe", "ann", (3, False, False), "b 0 x", 0),
        ],
    ],
    rotated_at=0,
).via("the last line that was known occurs again after a restart within the same second")
@many
@given(FLAG, FLAG, st.lists(schedules(PLAIN_NAMES), min_size=4, max_size=4), st.integers(0, 3))
def test_observer_is_not_falsely_complete_after_restarts(
    in_order, starts_complete, parts, rotated_at
):
    """For any restored state of the broker and any remainder of its log."""
    broker = Model("2.0")
    observer = observed(broker) if starts_complete else None
    for number, steps in enumerate(parts):
        if number == rotated_at:
            broker.history.clear()
        if number == 1:
            broker.save()
        if number == 2:
            broker.detach()
            broker.restart(in_order)
        for step in steps:
            play(broker, step)
            if observer is not None and observer.is_complete and number < 2:
                assert broker.expected_filters() <= set(observer.subscribed_filters())
    late = MosquittoObserver(OWN)
    if observer is not None:
        late.restore(observer.snapshot(), now=0.0)
    broker.attach(late)
    late.begin_resync(now=0.0)
    late.resync(broker.log_file(), now=0.0)
    for _ in range(3):
        if late.is_complete:
            assert broker.expected_filters() <= set(late.subscribed_filters())
        broker.count()
