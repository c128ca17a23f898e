"""Input for checkers: a world in which nothing runs, and made-up events."""

from types import SimpleNamespace

from hansa.protocol.model import Publication
from hansa.simulator.options import SimulationOptions
from hansa.simulator.topologies import parse_topology
from hansa.simulator.world.ledger import LedgerEntry
from hansa.simulator.world.world import World


def idle_world(**options):
    """Return three places in a ring; nothing runs."""
    return World(SimulationOptions(parse_topology("ring:3", 0), seed=42, **options))


def published(place=0, topic="a"):
    return LedgerEntry(0, place, topic, b"12345678", 0, False, 0.0, ())


def publication(**changes):
    fields = {
        "origin": 0,
        "epoch": 1,
        "sequence": 1,
        "qos": 0,
        "topic": "a",
        "payload": b"12345678",
    }
    return Publication(**{**fields, **changes})


def end(world, sender=0, receiver=1):
    """Return the sending end of a session."""
    other = SimpleNamespace(host=world.sites[receiver], is_open=True)
    return SimpleNamespace(host=world.sites[sender], peer=other, id=receiver)
