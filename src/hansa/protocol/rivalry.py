"""Two nodes with one id: who gives way (Machado's reconsideration of ids).

The one that started later gives way: with another key it takes a new one, with the very same key it
stops. Records of the dead cannot be told from those of the living, so the earlier node first raises
its incarnation above its rival's: nobody can do that for the dead, and the later one then knows.
"""

from enum import Enum, auto

from hansa.protocol.effects import Halt, Rekey
from hansa.protocol.frames import Hello
from hansa.protocol.records import NodeRecord
from hansa.protocol.vocabulary import Identity


class Verdict(Enum):
    """What to do about a record that has our id."""

    OURS = auto()
    """It is our own, a former life's, or one that we outrank already."""
    OUTRANK = auto()
    """We were here first: raise our incarnation above it."""
    GIVE_WAY = auto()
    """It was here first and is alive."""


def judge(me: Identity, incarnation: int, record: NodeRecord, alive: bool) -> Verdict:
    """Judge a record that has our id; `alive` if a neighbour vouches for its owner."""
    if (record.incarnation, record.born, record.key) == (incarnation, me.incarnation, me.key):
        return Verdict.OURS
    outranked = record.incarnation < incarnation
    if outranked and not alive:
        return Verdict.OURS
    if (record.born, record.key) < (me.incarnation, me.key):
        return Verdict.GIVE_WAY
    return Verdict.OURS if outranked else Verdict.OUTRANK


def give_way(me: Identity, key: bytes) -> Halt | Rekey:
    """Return how to give way to a rival with this key."""
    if key == me.key:
        return Halt("another node runs with this key and started earlier")
    return Rekey("another node with this id started earlier")


def outranks(holder: NodeRecord, theirs: Hello) -> bool:
    """Whether the holder of an id, being in reach, turns away who comes with the same one. Its
    record is sent along: so that one can find out whether to give way or to outrank it."""
    if holder.key != theirs.key:
        return holder.incarnation >= theirs.incarnation
    return holder.incarnation > theirs.incarnation
