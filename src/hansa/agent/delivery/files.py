"""Everything that the delivery of one agent keeps on disk."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from hansa.agent.alarms import Alarms
from hansa.agent.delivery.commit_thread import CommitThread
from hansa.agent.delivery.inbox_files import InboxFiles
from hansa.agent.delivery.outbox_files import OutboxFiles
from hansa.agent.recorded_topics import RecordedTopics
from hansa.agent.storage.connect_marker import ConnectMarker
from hansa.agent.storage.state_directory import (
    CONNECT_MARKER_FILE,
    INBOX_DIRECTORY,
    JOURNAL_DIRECTORY,
    SUBSCRIPTIONS_FILE,
    StateDirectory,
)
from hansa.agent.storage.subscription_file import SubscriptionFile
from hansa.delivery.context import Context
from hansa.delivery.core import BrokerTraits, DeliveryCore
from hansa.delivery.effects import LogName
from hansa.delivery.settings import DeliverySettings
from hansa.errors import UsageError
from hansa.journal.writer import JournalWriter
from hansa.protocol.model import Identity

log = logging.getLogger("hansa.agent")


class DeliveryFiles:
    """Both logs, the subscriptions and the connect marker of one incarnation."""

    def __init__(
        self,
        state: StateDirectory,
        identity: Identity,
        settings: DeliverySettings,
        alarms: Alarms,
        recorded_topics: RecordedTopics,
    ) -> None:
        """Open everything; corruption becomes alarms."""
        self._settings = settings
        self._alarms = alarms
        node, incarnation = identity.node, identity.incarnation
        self.outbox = OutboxFiles(
            state.path / JOURNAL_DIRECTORY,
            node,
            incarnation,
            settings.outbox_settings(),
            recorded_topics,
        )
        try:
            self.inbox = InboxFiles(
                state.path / INBOX_DIRECTORY, node, incarnation, settings.inbox_settings()
            )
        except Exception:
            self.outbox.close()  # another attempt needs it
            raise
        alarms.set("journal damaged", self.outbox.damage_text)
        alarms.set("inbox damaged", self.inbox.damage_text)
        self.connect_marker = ConnectMarker(
            state.path / CONNECT_MARKER_FILE, alarms.setter("connect marker not saved")
        )
        self.subscriptions = SubscriptionFile(
            state.path / SUBSCRIPTIONS_FILE, alarms.setter("subscription log faulty")
        )

        self._commit_threads = {name: CommitThread() for name in LogName}

    def make_core(self, broker: BrokerTraits) -> DeliveryCore:
        """Return the delivery core with the state on disk."""
        return DeliveryCore(
            Context(time.time_ns),
            self.outbox.log_state,
            self.inbox.log_state,
            self.subscriptions.saved_subscriptions,
            self._settings,
            broker,
        )

    def writer(self, name: LogName) -> JournalWriter:
        return self.outbox.writer if name is LogName.OUTBOX else self.inbox.writer

    def start_commit(
        self, name: LogName, on_ended: Callable[[LogName, Exception | None], None]
    ) -> None:
        """Make everything in a log durable; `on_ended` is called with the error if that failed."""
        self._commit_threads[name].start_commit(
            self.writer(name).commit, lambda error: on_ended(name, error)
        )

    def count_truncated(self) -> Counter[str]:
        """Count the bytes of torn records that were truncated at the start."""
        counters: Counter[str] = Counter()
        writers = {JOURNAL_DIRECTORY: self.outbox.writer, INBOX_DIRECTORY: self.inbox.writer}
        for name, writer in writers.items():
            count = writer.truncated_bytes
            if count:
                log.info("torn records truncated in %s bytes=%d", name, count)
                counters[f"truncated bytes in {name}"] = count
        return counters

    async def close(self) -> None:
        """Write everything and close the files; no write but a commit may run."""
        for thread in self._commit_threads.values():
            await thread.stop()
        await self._close_log(LogName.OUTBOX, self.outbox.close)
        await self._close_log(LogName.INBOX, self.inbox.writer.close)
        await self.subscriptions.stop()

    async def _close_log(self, name: LogName, close: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(close)
        except UsageError as error:
            self._alarms.set(name.alarm, str(error))
