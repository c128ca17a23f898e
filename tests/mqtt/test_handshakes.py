"""The steps of QoS 1 and 2, in both directions the same."""

import pytest

from hansa.mqtt.handshakes import Handshakes
from hansa.mqtt.packets import PubAck, PubComp, PubRec, PubRel


def test_qos_1_takes_one_step():
    one = Handshakes()
    one.open(7, qos=1)
    assert (7 in one, one.count) == (True, 1)
    assert one.advance(PubAck(7))
    assert (7 in one, one.count) == (False, 0)


def test_qos_2_takes_three_steps():
    one = Handshakes()
    one.open(7, qos=2)
    for step, after in ((PubRec(7), PubRel), (PubRel(7), PubComp), (PubComp(7), None)):
        assert one.advance(step)
        assert one.expected(7) is after


@pytest.mark.parametrize("refusal", [PubRec(7, 0x97), PubRec(7, 0x80)])
def test_refused_pubrec_ends_it(refusal):
    one = Handshakes()
    one.open(7, qos=2)
    assert one.advance(refusal)
    assert 7 not in one


def test_pubrel_with_a_reason_still_wants_its_pubcomp():
    one = Handshakes()
    one.open(7, qos=2)
    one.advance(PubRec(7))
    assert one.advance(PubRel(7, 0x92))
    assert one.expected(7) is PubComp


@pytest.mark.parametrize("step", [PubRec(7), PubComp(7), PubRel(7), PubAck(8)])
def test_other_steps_change_nothing(step):
    one = Handshakes()
    one.open(7, qos=1)
    assert not one.advance(step)
    assert one.expected(7) is PubAck


def test_resumed_handshake_is_not_counted():
    one = Handshakes()
    assert one.resume(7)
    assert (7 in one, one.count) == (True, 0)
    assert not one.resume(7)
    assert one.advance(PubComp(7))
    assert (7 in one, one.count) == (False, 0)
