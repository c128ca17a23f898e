"""Echoes of injected publications among identical ones of clients."""

import pytest

from hansa.agent.broker import echo_filter as module
from hansa.agent.broker.echo_filter import ECHO_EXPECTED_S, EchoFilter


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


def taken(echoes: EchoFilter, count: int, topic: str = "t", payload: bytes = b"x") -> list[bool]:
    return [echoes.consume_echo(topic, payload) for _ in range(count)]


def test_only_expected_number_of_copies_are_echoes(echoes):
    echoes.expect("t", b"x", 2)
    echoes.expect("t", b"x", 1)
    assert taken(echoes, 5) == [True, True, True, False, False]


def test_echo_has_equal_topic_and_payload(echoes):
    echoes.expect("t", b"x", 1)
    assert not echoes.consume_echo("t", b"y")
    assert not echoes.consume_echo("u", b"x")
    assert echoes.consume_echo("t", memoryview(b"x"))


def test_publication_without_subscribers_has_no_echo(echoes):
    echoes.expect("t", b"x", 0)
    assert not echoes.consume_echo("t", b"x")


def test_expected_echo_expires(echoes, clock):
    echoes.expect("t", b"x", 3)
    clock.now += ECHO_EXPECTED_S - 1
    assert echoes.consume_echo("t", b"x")
    clock.now += 2
    assert echoes.consume_echo("t", b"x")
    clock.now += ECHO_EXPECTED_S
    assert not echoes.consume_echo("t", b"x")
    assert echoes.missed_count == 1


def test_filter_is_full_until_echoes_arrive_or_expire(echoes, clock, monkeypatch):
    monkeypatch.setattr(module, "ECHOES_MAX", 3)
    for number in range(3):
        assert not echoes.is_full
        echoes.expect("t", b"%d" % number, 1)
    assert echoes.is_full
    echoes.consume_echo("t", b"1")
    assert not echoes.is_full
    echoes.expect("t", b"1", 1)
    assert echoes.is_full
    clock.now += 2 * ECHO_EXPECTED_S
    assert not echoes.is_full
