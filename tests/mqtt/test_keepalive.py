"""Signs of life: asked for in time, and missed in time."""

from hansa.mqtt.keepalive import KeepAliveTimer


def test_silence_of_both_is_broken_after_half_the_keep_alive():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    assert one.next_deadline() == 110.0
    assert not one.is_ping_due(109.9)
    assert one.is_ping_due(110.0)


def test_who_only_talks_still_asks():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    one.on_sent(109.0)
    assert one.is_ping_due(110.0)


def test_who_only_listens_still_speaks():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    one.on_received(109.0)
    assert one.is_ping_due(110.0)


def test_answer_is_awaited_as_long_as_nothing_arrives():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    one.on_ping_sent(110.0)
    assert (one.is_ping_due(114.9), one.has_timed_out(114.9), one.next_deadline()) == (
        False,
        False,
        115.0,
    )
    one.on_received(114.0)
    assert (one.has_timed_out(115.0), one.next_deadline()) == (False, 119.0)
    assert one.has_timed_out(119.0)


def test_broker_that_talks_but_does_not_answer_hears_from_us_all_the_same():
    one = KeepAliveTimer(20, timeout=50.0, now=100.0)
    one.on_ping_sent(110.0)
    one.on_received(119.0)
    assert one.is_ping_due(120.0)
    one.on_ping_sent(120.0)
    assert one.on_ping_response(121.0) == 11.0


def test_answer_tells_the_round_trip_once():
    one = KeepAliveTimer(20, timeout=5.0, now=100.0)
    one.on_ping_sent(110.0)
    one.on_received(110.25)
    assert one.on_ping_response(110.25) == 0.25
    assert one.on_ping_response(110.5) is None
    assert (one.has_timed_out(1_000.0), one.next_deadline()) == (False, 120.0)


def test_no_keep_alive_no_deadline():
    one = KeepAliveTimer(0, timeout=5.0, now=100.0)
    assert (one.next_deadline(), one.is_ping_due(1e9), one.has_timed_out(1e9)) == (
        None,
        False,
        False,
    )
    one.on_ping_sent(110.0)
    assert (one.next_deadline(), one.has_timed_out(115.0)) == (115.0, True)
