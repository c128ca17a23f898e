"""Echoes of injected publications among identical ones of clients."""

import pytest

from hansa.delivery.dedup import echo as module
from hansa.delivery.dedup.echo import ECHO_EXPECTED_S, ECHO_RESUMED_S, EchoFilter
from hansa.mqtt.packets import PublishPacket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def echoes(clock) -> EchoFilter:
    return EchoFilter(clock)


def arrival(
    topic: str = "t", payload: bytes = b"x", qos: int = 0, packet_id: int = 0, dup: bool = False
) -> PublishPacket:
    return PublishPacket(topic, payload, qos, dup=dup, packet_id=packet_id)


def taken(echoes: EchoFilter, count: int, qos: int = 0) -> list[bool]:
    return [echoes.consume_echo(arrival(qos=qos, packet_id=each)) for each in range(1, count + 1)]


def test_only_expected_number_of_copies_are_echoes(echoes):
    echoes.expect("t", b"x", 2, qos=0)
    echoes.expect("t", b"x", 1, qos=0)
    assert taken(echoes, 5) == [True, True, True, False, False]


def test_echo_has_equal_topic_and_payload(echoes):
    echoes.expect("t", b"x", 1, qos=0)
    assert not echoes.consume_echo(arrival("t", b"y"))
    assert not echoes.consume_echo(arrival("u", b"x"))
    assert echoes.consume_echo(arrival("t", b"x"))


def test_topic_and_payload_are_distinguished(echoes):
    echoes.expect("bc", b"a", 1, qos=0)
    assert not echoes.consume_echo(arrival("c", b"ab"))


def test_publication_without_subscribers_has_no_echo(echoes):
    echoes.expect("t", b"x", 0, qos=0)
    assert not echoes.consume_echo(arrival("t", b"x"))


def test_echo_of_qos_0_is_not_sent_again(echoes):
    echoes.expect("t", b"x", 1, qos=0)
    assert taken(echoes, 1) == [True]
    assert echoes.save().received == []


def test_expected_echo_expires(echoes, clock):
    echoes.expect("t", b"x", 3, qos=0)
    clock.now += ECHO_EXPECTED_S - 1
    assert echoes.consume_echo(arrival("t", b"x"))
    clock.now += 2
    assert echoes.consume_echo(arrival("t", b"x"))
    clock.now += ECHO_EXPECTED_S
    assert not echoes.consume_echo(arrival("t", b"x"))
    assert echoes.missed_count == 1


def test_echo_is_expected_for_the_least_time_whenever_it_begins(echoes, clock):
    assert not echoes.is_full
    clock.now += ECHO_EXPECTED_S - 1.1
    echoes.expect("t", b"x", 1, qos=0)
    clock.now += 0.2
    assert not echoes.is_full
    clock.now += ECHO_EXPECTED_S - 0.9
    assert taken(echoes, 1) == [True]


def test_echo_expected_at_time_zero_has_the_whole_time():
    clock = Clock()
    clock.now = 0.0
    echoes = EchoFilter(clock)
    echoes.expect("t", b"x", 1, qos=0)
    clock.now = 2 * ECHO_EXPECTED_S - 1
    assert taken(echoes, 1) == [True]


def test_filter_is_full_until_echoes_arrive_or_expire(echoes, clock, monkeypatch):
    monkeypatch.setattr(module, "ECHOES_MAX", 3)
    for number in range(3):
        assert not echoes.is_full
        echoes.expect("t", b"%d" % number, 1, qos=0)
    assert echoes.is_full
    echoes.consume_echo(arrival("t", b"1"))
    assert not echoes.is_full
    echoes.expect("t", b"1", 1, qos=0)
    assert echoes.is_full
    clock.now += 2 * ECHO_EXPECTED_S
    assert not echoes.is_full


def test_echo_beyond_the_limit_is_in_doubt(echoes, monkeypatch):
    monkeypatch.setattr(module, "ECHOES_MAX", 1)
    assert echoes.expect("t", b"x", 2, qos=1) == 0
    assert echoes.expect("t", b"y", 2, qos=1) == 2
    assert not echoes.consume_echo(arrival(payload=b"y"))


def test_no_copies_are_not_in_doubt(echoes):
    assert echoes.expect("t", b"x", 0, qos=1) == 0


@pytest.mark.parametrize(("injected", "delivered"), [(0, 2), (2, 0)])
def test_broker_may_deliver_an_echo_with_another_qos(echoes, injected, delivered):
    echoes.expect("t", b"x", 1, injected)
    assert taken(echoes, 2, delivered) == [True, False]


# ---------------------------------------------------------------- a session that lasts


def test_resumed_session_expects_queued_echoes_of_qos_1_and_2_only(echoes):
    for qos in range(3):
        echoes.expect("t", b"x", 1, qos)
    echoes.on_session_resumed()
    assert taken(echoes, 3, qos=1) == [True, True, False]


def test_queued_echoes_have_more_time_after_the_session_is_resumed(echoes, clock):
    echoes.expect("t", b"x", 2, qos=1)
    clock.now += 1_000
    echoes.on_session_resumed()
    clock.now += ECHO_RESUMED_S - 1
    assert taken(echoes, 1, qos=1) == [True]
    clock.now += 1 + ECHO_EXPECTED_S
    assert taken(echoes, 1, qos=1) == [False]


@pytest.mark.parametrize(
    ("qos", "again", "is_echo"),
    [
        (1, arrival(qos=1, packet_id=7, dup=True), True),
        (1, arrival(qos=1, packet_id=7), False),
        (2, arrival(qos=2, packet_id=7), True),
        (2, arrival(qos=1, packet_id=7, dup=True), False),
        (1, arrival(qos=1, packet_id=8, dup=True), False),
        (1, arrival("t", b"y", 1, 7, dup=True), False),
    ],
)
def test_echo_that_is_sent_again_is_recognised_by_packet_id(echoes, qos, again, is_echo):
    echoes.expect("t", b"x", 1, qos)
    assert echoes.consume_echo(arrival(qos=qos, packet_id=7))
    assert not echoes.consume_echo(again), "not on the same connection"
    for _ in range(2):
        echoes.on_session_resumed()
        assert echoes.consume_echo(again) is is_echo


def test_packet_id_is_free_after_pubrel(echoes):
    echoes.expect("t", b"x", 1, qos=2)
    echo = arrival(qos=2, packet_id=7)
    assert echoes.consume_echo(echo)
    echoes.on_released(7)
    echoes.on_released(8)
    echoes.on_session_resumed()
    assert not echoes.consume_echo(echo)


def test_received_echoes_are_bounded(echoes, monkeypatch):
    monkeypatch.setattr(module, "RECEIVED_MAX", 2)
    echoes.expect("t", b"x", 3, qos=1)
    assert taken(echoes, 3, qos=1) == [True] * 3
    echoes.on_session_resumed()
    again = [arrival(qos=1, packet_id=each, dup=True) for each in (1, 2, 3)]
    assert [echoes.consume_echo(each) for each in again] == [False, True, True]


def test_next_incarnation_continues(echoes, clock):
    echoes.expect("t", b"x", 3, qos=1)
    echoes.expect("t", b"x", 1, qos=0)
    assert taken(echoes, 1, qos=1) == [True]
    following = EchoFilter(clock, echoes.save())
    assert following.consume_echo(arrival(qos=1, packet_id=1, dup=True))
    assert taken(following, 3, qos=1) == [True, True, False]


def test_resumed_session_expects_old_echoes_as_long_as_new_ones(echoes, clock):
    echoes.expect("t", b"x", 1, qos=1)
    clock.now += ECHO_EXPECTED_S
    assert not echoes.is_full, "half of the time is over"
    echoes.on_session_resumed()
    clock.now += ECHO_RESUMED_S
    assert taken(echoes, 1, qos=1) == [True]


def test_echo_sent_again_is_recognised_once_on_a_connection(echoes):
    echoes.expect("t", b"x", 1, qos=1)
    assert taken(echoes, 1, qos=1) == [True]
    echoes.on_session_resumed()
    again = arrival(qos=1, packet_id=1, dup=True)
    assert [echoes.consume_echo(again) for _ in range(2)] == [True, False]


def test_echo_that_was_sent_again_is_remembered_longer(echoes, monkeypatch):
    monkeypatch.setattr(module, "RECEIVED_MAX", 2)
    echoes.expect("t", b"x", 3, qos=1)
    assert taken(echoes, 2, qos=1) == [True] * 2
    echoes.on_session_resumed()
    again = [arrival(qos=1, packet_id=each, dup=True) for each in (1, 2)]
    assert echoes.consume_echo(again[0])
    assert echoes.consume_echo(arrival(qos=1, packet_id=3))
    echoes.on_session_resumed()
    assert [echoes.consume_echo(each) for each in again] == [True, False]
