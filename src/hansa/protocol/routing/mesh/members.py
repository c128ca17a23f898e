"""Who belongs to the mesh of a group: parents that were told, children that told us.

A node is a member if its own clients want the group, if it is the core, or if it has a child: then
it connects that child to the core. A member tells its parents, once; it takes that back when it has
no reason left, after a linger. Nothing here knows how parents or cores are chosen.
"""

from collections.abc import Iterable

from hansa.protocol.model import Group, NodeId


class Membership:
    """One node's place in the meshes of all groups."""

    def __init__(self, linger: float) -> None:
        """Start as a member of nothing."""
        self._linger = linger
        self.members: dict[Group, None] = {}
        """The groups of which this node is a member."""
        self.told: dict[Group, dict[NodeId, None]] = {}
        """Per group, the parents that know of the membership."""
        self._children: dict[Group, dict[NodeId, None]] = {}
        self._held: dict[NodeId, int] = {}  # in how many groups each neighbour is a child
        self._leaving: dict[tuple[Group, NodeId], float] = {}

    def children(self, group: Group) -> dict[NodeId, None]:
        """Return a group's children here; do not change it."""
        return self._children.get(group, {})

    def held_by(self, child: NodeId) -> int:
        """Return in how many groups a neighbour is a child."""
        return self._held.get(child, 0)

    def note_child(
        self, child: NodeId, joined: Iterable[Group], left: Iterable[Group]
    ) -> list[Group]:
        """A neighbour became or ceased to be our child; return the groups where that is new."""
        changed = []
        for group in joined:
            children = self._children.setdefault(group, {})
            if child not in children:
                children[child] = None
                self._held[child] = self.held_by(child) + 1
                changed.append(group)
        for group in left:
            if _remove(self._children, group, child):
                self._held[child] -= 1
                changed.append(group)
        return changed

    def lose_neighbour(self, node: NodeId) -> list[Group]:
        """A neighbour is gone; return the groups in whose mesh it stood beside us."""
        for key in [key for key in self._leaving if key[1] == node]:
            del self._leaving[key]
        self._held.pop(node, None)
        return [
            group
            for group in dict.fromkeys([*self.told, *self._children])
            # Not `or`: it may be parent and child while the mesh turns to a new core.
            if _remove(self.told, group, node) | _remove(self._children, group, node)
        ]

    def settle(
        self, group: Group, member: bool, parents: tuple[NodeId, ...], now: float
    ) -> tuple[list[NodeId], bool]:
        """Bring a group in line; return the parents to tell now, and whether membership changed.

        Parents that are no longer needed are told by `leave`, after the linger.
        """
        changed = member != (group in self.members)
        if not (member or changed or group in self.told):
            return [], False
        if member:
            self.members[group] = None
        else:
            self.members.pop(group, None)
            parents = ()
        told = self.told.setdefault(group, {})
        for parent in told:
            if parent not in parents:
                self._leaving.setdefault((group, parent), now + self._linger)
        joins = [parent for parent in parents if parent not in told]
        for parent in parents:
            told[parent] = None
            self._leaving.pop((group, parent), None)
        if not told:
            del self.told[group]
        return joins, changed

    def leave(self, now: float) -> list[tuple[NodeId, Group]]:
        """Return the parents that must now hear that this node has left, and from what."""
        due = [key for key, at in self._leaving.items() if now >= at]
        for group, parent in due:
            del self._leaving[group, parent]
            _remove(self.told, group, parent)
        return [(parent, group) for group, parent in due]

    def next_deadline(self) -> float | None:
        """When `leave` next returns something."""
        return min(self._leaving.values()) if self._leaving else None


def _remove(table: dict[Group, dict[NodeId, None]], group: Group, node: NodeId) -> bool:
    """Take a node out of a group; return whether it was there."""
    nodes = table.get(group, {})
    if node not in nodes:
        return False
    del nodes[node]
    if not nodes:
        del table[group]
    return True
