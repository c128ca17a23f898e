"""Custody of borders: exactly once needs one journal record, and a choice that stays."""

import pytest
from bench.area_custody import HandOver, explore


@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_one_record_delivers_exactly_once(crashes: int):
    assert explore(HandOver.ONE_RECORD, chooses_again=False, crashes=crashes) == {1}


def test_acceptance_in_a_record_before_forwarding_may_lose():
    assert explore(HandOver.ACCEPT_FIRST, chooses_again=False, crashes=1) == {0, 1}


def test_forwarding_in_a_record_before_acceptance_may_duplicate():
    assert explore(HandOver.FORWARD_FIRST, chooses_again=False, crashes=1) == {1, 2}


def test_second_choice_of_a_border_may_duplicate():
    assert explore(HandOver.ONE_RECORD, chooses_again=True, crashes=1) == {1, 2}
