"""Parsing of every known form of Mosquitto's log lines."""

from dataclasses import replace

import pytest

from hansa.observers.mosquitto import log as log
from hansa.observers.mosquitto.log import (
    CUT_MARK,
    AmbiguousLine,
    BridgeConnecting,
    BrokerStarted,
    ClientConnected,
    ClientDisconnected,
    ClientMessagesDropped,
    ClientPossiblyConnected,
    ClientSubscribed,
    ClientTakenOver,
    ClientUnsubscribed,
    LogChannel,
    OversizedPublishDropped,
    Persisted,
    Reloaded,
    SessionExpired,
    SessionMode,
    Stopped,
    UnparsedLine,
)

KNOWN = {"bob", "bob 1 x", "a b", "10.0.0.9", "<unknown>", "fe80::1", "x [y] z", "bob: 7"}


def read(channel, line, *, cut=False, known=KNOWN):
    return log.parse_line(channel, line, cut, known)


# ---------------------------------------------------------------- subscribe and unsubscribe


@pytest.mark.parametrize(
    ("line", "readings"),
    [
        ("bob 0 t/1", [("bob", "t/1")]),
        ("bob 2 $share/g/t/#", [("bob", "$share/g/t/#")]),
        ("bob 1 two words/+", [("bob", "two words/+")]),
        ("a b 1 x", [("a b", "x")]),
        ("bob 1 x 0 f", [("bob 1 x", "f"), ("bob", "x 0 f")]),
        ("bob 0 1 f", [("bob 0", "f"), ("bob", "1 f")]),
        ("new 1 f", [("new", "f")]),
        ("new 1 x 0 f", [("new 1 x", "f"), ("new", "x 0 f")]),
        ("new 0 1 f", [("new 0", "f"), ("new", "1 f")]),
        ("bob 3 f 1 g", [("bob 3 f", "g")]),
    ],
)
def test_grants_have_all_readings_with_the_longest_id_first(line, readings):
    assert read(LogChannel.SUBSCRIBE, line) == ClientSubscribed(tuple(readings))


@pytest.mark.parametrize("line", ["", "bob", "bob 3 f", "bob 1", "bob 1 ", " 1 f", "bob1f"])
def test_invalid_grant_line_is_not_parsed(line):
    assert isinstance(read(LogChannel.SUBSCRIBE, line), UnparsedLine)


def test_truncated_grant_gives_filter_prefix():
    assert read(LogChannel.SUBSCRIBE, "bob 1 long", cut=True) == ClientSubscribed(
        (("bob", "long" + CUT_MARK),)
    )


@pytest.mark.parametrize(
    ("line", "readings"),
    [
        ("bob t/1", [("bob", "t/1")]),
        (" bob t/1", []),
        ("a b t/1", [("a b", "t/1")]),
        ("bob 1 x f", [("bob 1 x", "f"), ("bob", "1 x f")]),
    ],
)
def test_unsubscriptions_are_read_with_known_ids_only(line, readings):
    is_certain = line.count(" ") == 1
    assert read(LogChannel.UNSUBSCRIBE, line) == (
        ClientUnsubscribed(tuple(readings), is_certain) if readings else None
    )
    assert read(LogChannel.UNSUBSCRIBE, line, known=set()) is None


def test_truncated_unsubscription_gives_filter_prefix():
    assert read(LogChannel.UNSUBSCRIBE, "bob f", cut=True) == ClientUnsubscribed(
        (("bob", "f" + CUT_MARK),)
    )
    assert read(LogChannel.UNSUBSCRIBE, "bob ") is None


# ---------------------------------------------------------------- connections


@pytest.mark.parametrize(
    ("line", "event"),
    [
        # 2.0 counts protocols 1, 2, 5
        ("127.0.0.1:5 as bob (p1, c1, k60).", ("bob", SessionMode.CLEAN, True, "127.0.0.1:5")),
        ("127.0.0.1:5 as bob (p2, c1, k60).", ("bob", SessionMode.CLEAN, True, "127.0.0.1:5")),
        (
            "127.0.0.1:5 as bob (p2, c0, k60).",
            ("bob", SessionMode.PERSISTENT, False, "127.0.0.1:5"),
        ),
        ("127.0.0.1:5 as bob (p5, c1, k60).", ("bob", SessionMode.EXPIRING, True, "127.0.0.1:5")),
        ("127.0.0.1:5 as bob (p5, c0, k0).", ("bob", SessionMode.EXPIRING, False, "127.0.0.1:5")),
        # 2.1 counts them 3, 4, 5
        ("::1:5 as bob (p3, c0, k60).", ("bob", SessionMode.PERSISTENT, False, "::1:5")),
        ("::1:5 as bob (p4, c1, k60).", ("bob", SessionMode.CLEAN, True, "::1:5")),
        # 1.6 has no port
        ("10.0.0.1 as bob (p2, c1, k60).", ("bob", SessionMode.CLEAN, True, "10.0.0.1")),
        # user names, spaces, and both in the worst combination
        ("h:1 as bob (p2, c1, k60, u'eve').", ("bob", SessionMode.CLEAN, True, "h:1")),
        (
            "h:1 as with user (p2, c1, k30, u'bo'b).').",
            ("with user", SessionMode.CLEAN, True, "h:1"),
        ),
        ("h:1 as a as b (p2, c1, k1).", ("a as b", SessionMode.CLEAN, True, "h:1")),
    ],
)
def test_connections_of_all_versions_are_parsed(line, event):
    client, bridge = "New client connected from ", "New bridge connected from "
    assert read(LogChannel.NOTICE, client + line) == ClientConnected(*event)
    assert read(LogChannel.NOTICE, bridge + line) == replace(
        ClientConnected(*event), is_bridge=True
    )


def test_user_name_that_looks_like_the_end_of_the_line_leaves_two_readings():
    line = "New client connected from h:1 as bob (p2, c1, k1, u'x (p5, c0, k2, u'y')."
    expected = ClientPossiblyConnected(("bob (p2, c1, k1, u'x", "bob"))
    assert read(LogChannel.NOTICE, line) == expected


def test_unparsable_connections_are_reported():
    line = "New client connected from h:1 as bob"
    assert isinstance(read(LogChannel.NOTICE, line), UnparsedLine)
    assert isinstance(read(LogChannel.NOTICE, line, cut=True), UnparsedLine)


# ---------------------------------------------------------------- disconnections

UNTIL_2_1_0 = [
    "disconnected.",
    "closed its connection.",
    "has exceeded timeout, disconnecting.",
    "disconnected due to malformed packet.",
    "disconnected due to protocol error.",
    "disconnected due to oversize packet.",
    "disconnected due to oversize payload.",
    "disconnected due to out of memory.",
    "disconnected due to using not allowed feature"
    " (QoS too high, retain not supported, or bad AUTH method).",
    "disconnected due to exceeding the receive maximum.",
    "been disconnected by administrative action.",
    "disconnected: Connection reset by peer.",
    "disconnected, quota exceeded.",
    "disconnected, session taken over.",
    "disconnected, topic alias invalid.",
]

SINCE_2_1_1 = [
    "disconnected.",
    "disconnected: connection closed by client.",
    "disconnected: exceeded timeout.",
    "disconnected: malformed packet.",
    "disconnected: protocol error.",
    "disconnected: not authorised.",
    "disconnected: used disallowed feature (QoS too high).",
    "disconnected: administrative action.",
    "disconnected: session taken over.",
    "disconnected: Connection reset by peer.",
    "disconnected: bad socket read/write: Unknown error",
]

TURNED_AWAY = [
    "disconnected, not authorised.",
    "disconnected, client identifier not valid.",
    "disconnected, bad username or password.",
    "disconnected, server unavailable.",
    "disconnected, server busy.",
    "disconnected, client banned.",
    "disconnected, bad authentication method.",
    "disconnected, connection rate exceeded.",
    "disconnected, non-matching http origin.",
    "disconnected, implementation specific error.",
]

ids = pytest.mark.parametrize("client", ["bob", "a b", "bob 1 x", "x [y] z"])


@ids
@pytest.mark.parametrize("rest", UNTIL_2_1_0)
def test_disconnections_until_2_1_0(client, rest):
    assert read(LogChannel.NOTICE, f"Client {client} {rest}") == ClientDisconnected(client)


@ids
@pytest.mark.parametrize("rest", SINCE_2_1_1)
@pytest.mark.parametrize("address", ["127.0.0.1:5", "fe80::1:5", "(null):0"])
def test_disconnections_since_2_1_1(client, rest, address):
    assert read(LogChannel.NOTICE, f"Client {client} [{address}] {rest}") == ClientDisconnected(
        client, address
    )


@pytest.mark.parametrize("rest", TURNED_AWAY)
def test_refused_client_had_no_session(rest):
    assert read(LogChannel.NOTICE, f"Client bob {rest}") is None


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("Client bob disconnected: disconnected, not authorised.", None),
        ("Client bob disconnected: x disconnected.", None),
        ("Client bob [h:1] disconnected: [h:2] disconnected: not authorised.", "h:1"),
    ],
)
def test_ambiguous_disconnection_is_uncertain(line, address):
    """A refused client must not end another session by the choice of its name."""
    assert read(LogChannel.NOTICE, line) == ClientDisconnected("bob", address, is_certain=False)


@pytest.mark.parametrize("client", ["10.0.0.9", "fe80::1", "<unknown>"])
def test_id_that_looks_like_an_address_makes_disconnection_uncertain(client):
    """A port scan from 10.0.0.9 logs the same line as the client 10.0.0.9."""
    line = f"Client {client} closed its connection."
    assert read(LogChannel.NOTICE, line) == ClientDisconnected(client, is_certain=False)
    line = f"Client {client} [10.0.0.9:7] disconnected."
    assert read(LogChannel.NOTICE, line) == ClientDisconnected(client, "10.0.0.9:7")


@pytest.mark.parametrize("client", ["bob", "bob: 7"])
def test_bad_socket_is_uncertain_disconnection(client):
    line = f"Bad socket read/write on client {client}: The connection was lost."
    assert read(LogChannel.NOTICE, line) == ClientDisconnected(client, is_certain=False)
    assert read(LogChannel.NOTICE, line, known=set()) is None


def test_takeover_expiry_and_starvation_lines_are_parsed():
    line = "Client a b already connected, closing old connection."
    assert read(LogChannel.NOTICE, line) == ClientTakenOver("a b")
    assert read(LogChannel.NOTICE, "Expiring client a b due to timeout.") == SessionExpired("a b")
    line = "Outgoing messages are being dropped for client a b."
    assert read(LogChannel.NOTICE, line) == ClientMessagesDropped("a b")


def test_oversized_publication_line_is_parsed():
    line = "Dropping too large outgoing PUBLISH for a b (2097163 bytes)"
    assert read(LogChannel.NOTICE, line) == OversizedPublishDropped("a b", 2_097_163)


@pytest.mark.parametrize(
    "line",
    [
        "New connection from 127.0.0.1:36046 on port 38941.",
        "Client bob negotiated TLSv1.3 cipher TLS_AES_256_GCM_SHA384",
        "Client somebody else disconnected.",
        "Bad client bob sending multiple CONNECT messages.",
        "",
    ],
)
def test_other_notices_are_ignored(line):
    assert read(LogChannel.NOTICE, line) is None


def test_truncated_disconnection_may_name_longer_id():
    assert read(LogChannel.NOTICE, "Client bob disconnected: x", cut=True) is None


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("mosquitto version 2.0.11 starting", BrokerStarted("2.0.11")),
        ("mosquitto version 2.0.11 running", None),
        ("mosquitto version 2.0.11 terminating", Stopped()),
        ("Reloading config.", Reloaded()),
        ("Config loaded from /etc/mosquitto/mosquitto.conf.", None),
        ("bob 1 x/y", ClientSubscribed((("bob", "x/y"),))),
        ("bob x/y", ClientUnsubscribed((("bob", "x/y"),))),
        ("new 1 x/y", ClientSubscribed((("new", "x/y"),))),
        ("Restored 2 subscriptions", Persisted()),
        ("Connecting bridge (step 1) north (10.0.0.1:1883)", BridgeConnecting()),
        ("Connecting bridge north (10.0.0.1:1883)", BridgeConnecting()),
        ("Restored 12 base messages", Persisted()),
        (
            "New client connected from h:1 as c (p2, c1, k1).",
            ClientConnected("c", SessionMode.CLEAN, True, "h:1"),
        ),
        ("Client bob disconnected.", ClientDisconnected("bob")),
        ("Saving in-memory database to /var/lib/mosquitto/mosquitto.db.", Persisted()),
        ("mosquitto version 2 starting", None),
    ],
)
def test_channel_of_file_line_is_inferred_from_its_text(line, event):
    assert read(LogChannel.HISTORY, line) == event


@pytest.mark.parametrize(
    ("known", "line", "events"),
    [
        (
            "Client",
            "Client bob disconnected.",
            (
                ClientDisconnected("bob", is_certain=False),
                ClientUnsubscribed((("Client", "bob disconnected."),), is_only_reading=False),
            ),
        ),
        (
            "Expiring client",
            "Expiring client 0 b due to timeout.",
            (
                SessionExpired("0 b", is_certain=False),
                ClientSubscribed((("Expiring client", "b due to timeout."),)),
            ),
        ),
        (
            "New",
            "New client connected from h:1 as bob (p2, c1, k1).",
            (
                ClientPossiblyConnected(("bob",)),
                ClientUnsubscribed(
                    (("New", "client connected from h:1 as bob (p2, c1, k1)."),),
                    is_only_reading=False,
                ),
            ),
        ),
        (
            "bob 1 b",
            "bob 1 b x",
            (
                ClientSubscribed((("bob", "b x"),)),
                ClientUnsubscribed((("bob 1 b", "x"),), is_only_reading=False),
            ),
        ),
        (
            "New client",
            "New client connected x",
            (ClientUnsubscribed((("New client", "connected x"),), is_only_reading=False),),
        ),
    ],
)
def test_line_of_a_file_that_a_known_client_may_have_caused_is_ambiguous(known, line, events):
    assert read(LogChannel.HISTORY, line, known={"bob", known}) == AmbiguousLine(events)


# ---------------------------------------------------------------- timestamps


@pytest.mark.parametrize(
    ("example", "others"),
    [
        ("1794789623: ", ["1794789624: ", "17947896240: "]),
        ("2026-01-09T07:00:00: ", ["2026-12-31T23:59:59: "]),
        ("Mon Nov  9 07:00:00 CET: ", ["Tue Dec 19 17:00:01 CEST: "]),
        ("[09/Jan/2026] ärger_1: ", ["[10/Feb/2026] öde_22: "]),
        ("", [""]),
    ],
)
def test_timestamp_pattern_is_inferred_from_one_example(example, others):
    stamp = log.timestamp_pattern(example)
    for other in (example, *others):
        found = stamp.match(other + "bob 0 1: x")
        assert found is not None
        assert found.end() == len(other)


def test_timestamp_ends_before_a_client_id_that_begins_with_a_blank():
    found = log.timestamp_pattern("1794789623: ").match("1794789624:  bob t/1")
    assert found is not None
    assert found.string[found.end() :] == " bob t/1"  # not a line of the client `bob`


@pytest.mark.parametrize(("text", "end"), [("1794789623: b", 12), ("b 0 1: x", 0), ("12: b", 0)])
def test_default_timestamp_is_seconds_or_empty(text, end):
    found = log.DEFAULT_TIMESTAMP.match(text)
    assert found is not None
    assert found.end() == end


def test_lines_of_999_bytes_may_be_truncated():
    assert [log.may_be_truncated(size) for size in (998, 999)] == [False, True]
