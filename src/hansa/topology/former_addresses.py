"""Addresses of nodes whose records are not known, from the manager or an earlier incarnation.

An address is dropped if neither a record nor the manager has confirmed it for a day. The number of
addresses is bounded; the oldest are dropped first.
"""

from collections.abc import Container, Iterator, Mapping

from hansa.protocol.model import NodeId
from hansa.topology.graph import NodeName

FORMER_ADDRESS_LIFETIME_S = 86_400.0
FORMER_ADDRESSES_MAX = 4_096


class FormerAddresses:
    """Former addresses by node name, with their ages."""

    def __init__(self) -> None:
        self._addresses: dict[NodeName, str] = {}
        self._ages_s: dict[NodeName, float] = {}
        """Seconds since the last confirmation, over all incarnations."""
        self._updated_at: float | None = None

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._addresses)

    def get(self, name: NodeName) -> str:
        """Return the address of a node, empty if it is not known."""
        return self._addresses.get(name, "")

    def confirm(self, addresses: Mapping[NodeName, str]) -> None:
        """Add addresses that the manager named; their age starts again."""
        merged = self._addresses | dict(addresses)
        self._addresses = dict([*merged.items()][-FORMER_ADDRESSES_MAX:])
        self._ages_s = {n: age for n, age in self._ages_s.items() if n not in addresses}

    def expire(self, now: float) -> None:
        """Drop addresses at the end of their lifetime."""
        passed = 0.0 if self._updated_at is None else now - self._updated_at
        self._updated_at = now
        if self._addresses:
            self._ages_s = {n: self._ages_s.get(n, 0.0) + passed for n in self._addresses}
            self._addresses = {
                n: address
                for n, address in self._addresses.items()
                if self._ages_s[n] < FORMER_ADDRESS_LIFETIME_S
            }

    def remove(self, known: Container[NodeId]) -> None:
        """Drop the addresses of nodes whose records are known."""
        self._addresses = {
            n: address for n, address in self._addresses.items() if int(n, 16) not in known
        }

    def addresses(self) -> dict[NodeName, str]:
        return dict(self._addresses)

    def ages_in_minutes(self) -> dict[NodeName, int]:
        return {name: int(self._ages_s.get(name, 0) // 60) for name in self._addresses}

    def restore(self, addresses: Mapping[NodeName, str], ages_s: Mapping[NodeName, float]) -> None:
        """Replace the contents by those of an earlier incarnation."""
        self._addresses = dict([*addresses.items()][:FORMER_ADDRESSES_MAX])
        self._ages_s = dict(ages_s)
