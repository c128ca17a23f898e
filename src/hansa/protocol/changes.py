"""What an overlay reports beside effects: changes for `node` to carry to those that care."""

from dataclasses import dataclass

from hansa.protocol.database import SetChange
from hansa.protocol.effects import Effect
from hansa.protocol.frames import Control
from hansa.protocol.vocabulary import NodeId


@dataclass(frozen=True, slots=True)
class CostsChanged:
    """A link became noticeably longer or shorter."""


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """A node reports another capacity than before."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class NewLife:
    """A node is known to have started anew: what its former life claimed is void."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Passed:
    """A frame of a neighbour that is not the overlay's own."""

    sender: NodeId
    frame: Control


Change = CostsChanged | CapacityChanged | NewLife | SetChange | Passed
Outcome = list[Effect | Change]
