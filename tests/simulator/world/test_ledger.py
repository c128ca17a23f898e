"""The ledger of publications."""

from hansa.protocol.model import NodeId, Publication
from hansa.simulator.world.ledger import Ledger, LedgerEntry


def publication(payload):
    return Publication(origin=NodeId(0), epoch=1, sequence=1, qos=0, topic="a", payload=payload)


def entry(ledger, expected=(), at=0.0):
    added = LedgerEntry(
        len(ledger.entries), 0, "a", ledger.next_payload(16), 0, False, at, expected
    )
    ledger.add_publication(added)
    return added


def test_payload_identifies_its_entry():
    ledger = Ledger()
    first, second = entry(ledger), entry(ledger)
    assert len(first.payload) == len(second.payload) == 16
    assert ledger.find(publication(first.payload)) is first
    assert ledger.find(publication(second.payload)) is second
    assert ledger.find(publication(b"what is this?")) is None


def test_repeated_payloads_are_equal_and_identify_their_entries():
    ledger = Ledger()
    payloads = []
    for number in range(2):
        payloads.append(ledger.next_payload(16, is_repeated=True))
        ledger.add_publication(LedgerEntry(number, 0, "a", payloads[-1], 0, False, 0.0, ()))
    assert payloads[0] == payloads[1]
    assert [ledger.find(publication(each)) for each in payloads] == ledger.entries


def test_deliveries_are_counted_against_expected_ones():
    ledger = Ledger()
    added = entry(ledger, expected=(1, 2), at=1.0)
    ledger.record_delivery(added, 1, 1.25)
    ledger.record_delivery(added, 1, 1.5)
    ledger.record_delivery(added, 3, 1.5)
    assert (ledger.expected_count, ledger.delivered_count, ledger.duplicate_count) == (2, 1, 1)
    assert ledger.delay_statistics_by_place()[1].mean == 250.0
    whole = ledger.delay_statistics()
    assert whole is not None
    assert whole.count == 2
