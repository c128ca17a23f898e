"""Mesh membership: which parents know of this node's membership, and which neighbours are children.

A node is a member of a group's mesh if its own clients are interested, if it is the core, or if it
has a child, which it connects to the core. A member notifies its parents once. When it has no
reason left, it notifies them again after a linger.
"""

from collections.abc import Iterable

from hansa.protocol.model import Group, NodeId


class MeshMembers:
    """One node's membership in the meshes of all groups."""

    def __init__(self, linger: float) -> None:
        self._linger = linger
        self.member_groups: dict[Group, None] = {}
        """The groups of which this node is a member."""
        self.notified_parents: dict[Group, dict[NodeId, None]] = {}
        """Per group, the parents that were notified of the membership."""
        self._children: dict[Group, dict[NodeId, None]] = {}
        self._child_group_counts: dict[
            NodeId, int
        ] = {}  # in how many groups each neighbour is a child
        self._leave_due: dict[tuple[Group, NodeId], float] = {}

    def children(self, group: Group) -> dict[NodeId, None]:
        """Return a group's children; callers must not change it."""
        return self._children.get(group, {})

    def child_group_count(self, child: NodeId) -> int:
        """Return in how many groups a neighbour is a child."""
        return self._child_group_counts.get(child, 0)

    def update_child(
        self, child: NodeId, joined: Iterable[Group], left: Iterable[Group]
    ) -> list[Group]:
        """A neighbour became or ceased to be a child; return the groups where that is a change."""
        changed = []
        for group in joined:
            children = self._children.setdefault(group, {})
            if child not in children:
                children[child] = None
                self._child_group_counts[child] = self.child_group_count(child) + 1
                changed.append(group)
        for group in left:
            if _remove(self._children, group, child):
                self._child_group_counts[child] -= 1
                changed.append(group)
        return changed

    def remove_neighbour(self, node: NodeId) -> list[Group]:
        """A neighbour was lost; return the groups in which it was parent or child."""
        for key in [key for key in self._leave_due if key[1] == node]:
            del self._leave_due[key]
        self._child_group_counts.pop(node, None)
        return [
            group
            for group in dict.fromkeys([*self.notified_parents, *self._children])
            # Not `or`: it may be parent and child while the mesh changes to a new core.
            if _remove(self.notified_parents, group, node) | _remove(self._children, group, node)
        ]

    def update_group(
        self, group: Group, member: bool, parents: tuple[NodeId, ...], now: float
    ) -> tuple[list[NodeId], bool]:
        """Update a group; return the parents to notify now, and whether membership changed.

        `pop_due_leaves` returns parents that are no longer needed, after the linger.
        """
        changed = member != (group in self.member_groups)
        if not (member or changed or group in self.notified_parents):
            return [], False
        if member:
            self.member_groups[group] = None
        else:
            self.member_groups.pop(group, None)
            parents = ()
        notified = self.notified_parents.setdefault(group, {})
        for parent in notified:
            if parent not in parents:
                self._leave_due.setdefault((group, parent), now + self._linger)
        joins = [parent for parent in parents if parent not in notified]
        for parent in parents:
            notified[parent] = None
            self._leave_due.pop((group, parent), None)
        if not notified:
            del self.notified_parents[group]
        return joins, changed

    def pop_due_leaves(self, now: float) -> list[tuple[NodeId, Group]]:
        """Return the parents to notify now that this node has left, with the groups."""
        due = [key for key, at in self._leave_due.items() if now >= at]
        for group, parent in due:
            del self._leave_due[group, parent]
            _remove(self.notified_parents, group, parent)
        return [(parent, group) for group, parent in due]

    def next_deadline(self) -> float | None:
        """When `pop_due_leaves` is due."""
        return min(self._leave_due.values()) if self._leave_due else None


def _remove(table: dict[Group, dict[NodeId, None]], group: Group, node: NodeId) -> bool:
    """Remove a node from a group; return whether it was there."""
    nodes = table.get(group, {})
    if node not in nodes:
        return False
    del nodes[node]
    if not nodes:
        del table[group]
    return True
