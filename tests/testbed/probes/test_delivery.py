"""Delivery probes with real brokers."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.broker.test_delivery_class import MOSQUITTO
from tests.agent.other_brokers.brokers import Other

from hansa.agent.broker.connection import BrokerAddress
from hansa.agent.broker.delivery_class import DeliveryClass, DeliveryProbeResult, classify
from hansa.errors import UsageError
from hansa.mqtt.options import ConnectOptions
from hansa.mqtt.packets import PublishPacket
from hansa.mqtt.types import Version
from hansa.testbed.probes.delivery import ProbeConnection, judge_redelivery, probe_delivery

EXACT = replace(MOSQUITTO, queued_count=1_200)
BREAKING_OFF = "an aborted connection"


def address_of(text: str) -> BrokerAddress:
    host, _, port = text.partition(":")
    return BrokerAddress(host, int(port))


def untold(text: str) -> None:
    """Ignore progress."""


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize(
    ("lines", "queued"), [((), 1_000), (("max_queued_messages 100000",), 1_200)]
)
def test_mosquitto_delivers_exactly_once_within_its_queue(broker, lines, queued, version):
    address = address_of(broker("allow_anonymous true", *lines))
    delivery = asyncio.run(probe_delivery(address, untold, version))
    assert delivery == replace(EXACT, queued_count=queued)
    assert classify(delivery).delivery_class is DeliveryClass.EXACTLY_ONCE


def test_broker_without_qos_2_is_probed_with_qos_1(broker):
    address = address_of(broker("max_qos 1", "allow_anonymous true", "max_queued_messages 100000"))
    assert asyncio.run(probe_delivery(address, untold)) == replace(
        EXACT, accepts_qos2=False, deduplicates_publish=None, repeats_pubcomp=None
    )


def test_probe_without_permission_has_no_result(broker, tmp_path):
    rules = tmp_path / "acl"
    rules.write_text("topic read #\n")
    address = address_of(broker("allow_anonymous true", f"acl_file {rules}"))
    assert asyncio.run(probe_delivery(address, untold)) == DeliveryProbeResult()


def received(payload: bytes, packet_id: int, dup: bool = True) -> PublishPacket:
    return PublishPacket("t", payload, 1, dup=dup, packet_id=packet_id)


@pytest.mark.parametrize(
    ("again", "redelivers", "keeps_ids", "marks_dup"),
    [
        ([received(b"a", 1), received(b"b", 2)], True, True, True),
        ([received(b"a", 1), received(b"b", 2), received(b"late", 3, dup=False)], True, True, True),
        ([received(b"a", 1), received(b"b", 3, dup=False)], True, False, False),
        ([received(b"a", 1)], False, None, None),
    ],
)
def test_redelivery_is_judged_by_publications_that_were_in_flight(
    again, redelivers, keeps_ids, marks_dup
):
    """A slow broker delivers some only after the reconnection: these are no redeliveries."""
    assert judge_redelivery(DeliveryProbeResult(), {b"a": 1, b"b": 2}, again) == (
        DeliveryProbeResult(
            redelivers_unacknowledged=redelivers, keeps_packet_ids=keeps_ids, marks_dup=marks_dup
        )
    )


def test_redelivery_is_unknown_if_nothing_was_in_flight():
    found = judge_redelivery(DeliveryProbeResult(), {}, [received(b"late", 1, dup=False)])
    assert found == DeliveryProbeResult()


@pytest.fixture
def amqtt(tmp_path: Path) -> Iterator[BrokerAddress]:
    """amqtt in a separate process: it leaves resources to the garbage collector."""
    made = Other("amqtt", tmp_path)
    yield BrokerAddress("127.0.0.1", made.port)
    made.close()


def test_amqtt_resumes_sessions_without_their_messages(amqtt):
    delivery = asyncio.run(probe_delivery(amqtt, untold, Version.V311))
    found = (
        delivery.accepts_qos2,
        delivery.resumes_session,
        delivery.redelivers_unacknowledged,
        delivery.queued_count,
    )
    assert found == (True, True, False, 0)  # whether it deduplicates QoS 2 is random
    assert classify(delivery).delivery_class is DeliveryClass.BEST_EFFORT


def test_connection_that_the_broker_closes_once_is_tried_again(broker):
    """As NATS does if the end of the previous connection reaches it late."""
    there = address_of(broker("allow_anonymous true"))
    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        if len(served) == 3:  # the second one of the sender
            await reader.read(1)
            writer.close()
        else:
            from_broker, to_broker = await asyncio.open_connection(there.host, there.port)
            await asyncio.gather(pump(reader, to_broker), pump(from_broker, writer))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def probe() -> DeliveryProbeResult:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            address = BrokerAddress("127.0.0.1", port)
            delivery = await probe_delivery(address, untold, queue_tried=20)
            await asyncio.gather(*filter(None, served))
        return delivery

    assert asyncio.run(probe()) == replace(EXACT, queued_count=20, queue_offered_count=20)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_no_session_is_left_behind(is_cancelled, broker, monkeypatch):
    monkeypatch.setattr("hansa.testbed.probes.delivery.secrets.token_hex", lambda _: "known")
    address = address_of(broker("allow_anonymous true"))
    seen: list[str] = []

    async def present(role: str) -> bool:
        options = ConnectOptions(client_id=f"hansa-doctor-known-{role}", session_expiry=60)
        connection = ProbeConnection(address, options, sends_acks=True)
        await connection.start()
        await connection.abort()
        return connection.session_present

    async def run() -> list[bool]:
        def report(text: str) -> None:
            seen.append(text)
            if is_cancelled and text == BREAKING_OFF:
                task.cancel()

        task = asyncio.create_task(probe_delivery(address, report))
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() is is_cancelled
        roles = ("sender", "keeper", "listener")
        left = [await present(role) for role in roles]
        assert all([await present(role) for role in roles])  # sessions exist before the clean-up
        return left

    assert asyncio.run(run()) == [False, False, False]
    assert BREAKING_OFF in seen


def test_broker_that_stops_during_the_probe_is_one_line(broker):
    text = broker("allow_anonymous true")

    def report(what: str) -> None:
        if what == BREAKING_OFF:
            broker.stop(text)

    with pytest.raises(UsageError, match=f"^broker {text}: Connection refused$"):
        asyncio.run(probe_delivery(address_of(text), report))
