"""The steps of QoS 1 and 2, in both directions the same."""

import pytest

from hansa.mqtt.handshakes import InFlightHandshakes
from hansa.mqtt.packets import PubAckPacket, PubCompPacket, PubRecPacket, PubRelPacket


def test_qos_1_takes_one_step():
    one = InFlightHandshakes()
    one.start(7, qos=1)
    assert (7 in one, one.count) == (True, 1)
    assert one.advance(PubAckPacket(7))
    assert (7 in one, one.count) == (False, 0)


def test_qos_2_takes_three_steps():
    one = InFlightHandshakes()
    one.start(7, qos=2)
    for step, after in (
        (PubRecPacket(7), PubRelPacket),
        (PubRelPacket(7), PubCompPacket),
        (PubCompPacket(7), None),
    ):
        assert one.advance(step)
        assert one.expected_packet(7) is after


@pytest.mark.parametrize("refusal", [PubRecPacket(7, 0x97), PubRecPacket(7, 0x80)])
def test_refused_pubrec_ends_it(refusal):
    one = InFlightHandshakes()
    one.start(7, qos=2)
    assert one.advance(refusal)
    assert 7 not in one


def test_pubrel_with_a_reason_still_wants_its_pubcomp():
    one = InFlightHandshakes()
    one.start(7, qos=2)
    one.advance(PubRecPacket(7))
    assert one.advance(PubRelPacket(7, 0x92))
    assert one.expected_packet(7) is PubCompPacket


@pytest.mark.parametrize(
    "step", [PubRecPacket(7), PubCompPacket(7), PubRelPacket(7), PubAckPacket(8)]
)
def test_other_steps_change_nothing(step):
    one = InFlightHandshakes()
    one.start(7, qos=1)
    assert not one.advance(step)
    assert one.expected_packet(7) is PubAckPacket


def test_resumed_handshake_is_not_counted():
    one = InFlightHandshakes()
    assert one.resume(7)
    assert (7 in one, one.count) == (True, 0)
    assert not one.resume(7)
    assert one.advance(PubCompPacket(7))
    assert (7 in one, one.count) == (False, 0)
