"""Saves the observed interest before the node announces it.

Other nodes journal publications for announced interest, so the agent must still know the interest
after a restart. While the disk fails, changes are announced all the same and saving is retried.
"""

import asyncio
from collections.abc import Callable, Iterable

from hansa.agent import tasks
from hansa.protocol.events import InterestChanged

RETRY_S = 1.0
"""Seconds until a failed save is repeated."""


class InterestReporter:
    """Saves snapshots of the observer and feeds its changes to the node, in this order."""

    def __init__(
        self,
        snapshot: Callable[[], object],
        save: Callable[[object], bool],
        feed: Callable[..., None],
    ) -> None:
        """`save` runs in a thread and returns whether the snapshot is on disk."""
        self._snapshot = snapshot
        self._save = save
        self._feed = feed
        self._unreported: list[InterestChanged] = []
        self._task: asyncio.Task[None] | None = None
        self._has_left = False

    @property
    def is_busy(self) -> bool:
        """Whether changes are not saved and announced yet."""
        return tasks.is_running(self._task)

    def withdraw(self, filters: Iterable[str]) -> None:
        """Withdraw all interest, and report nothing more: the node leaves the federation."""
        self._has_left = True
        self._unreported.clear()
        self._feed(InterestChanged(removed=tuple(filters)))

    def report(self, event: InterestChanged) -> None:
        if self._has_left:
            return
        self._unreported.append(event)
        if not self.is_busy:
            self._task = tasks.start_task(self._save_and_report())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _save_and_report(self) -> None:
        is_saved = True
        while self._unreported or not is_saved:
            events, self._unreported = self._unreported, []
            is_saved = await asyncio.to_thread(self._save, self._snapshot())
            self._feed(*events)
            if not is_saved:
                await asyncio.sleep(RETRY_S)
