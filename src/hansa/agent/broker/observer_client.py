"""The agent's second client at its broker: it receives what the observer needs, and nothing else.

It reads at QoS 0 on a clean connection of its own: at QoS 1 a burst of subscriptions would overflow
the broker's queue. A pure observer processes the messages; its conclusions go to the node.

While the observer does not know every subscription, this client announces a *wide interest* in
addition to the known one: the filters of `[broker] filters_when_unknown`. An unneeded copy costs
bandwidth; a missing one is a lost message.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence

from hansa.agent import tasks
from hansa.agent.broker.connection import ConnectionFactory
from hansa.agent.deadline_timer import DeadlineTimer
from hansa.errors import UsageError
from hansa.mqtt import effects, inputs, packets
from hansa.mqtt.types import REFUSAL_CODE_MIN
from hansa.observers.base import (
    ObservationIncomplete,
    Observer,
    ObserverFinding,
    ObserverOutput,
    ObserverSnapshot,
    ResyncFailed,
    SubscriptionCountMismatch,
)
from hansa.observers.history import SubscriptionHistory
from hansa.protocol.events import InterestChanged

LOG_TOPICS = "$SYS/broker/log/"
COUNT_TOPICS = ("$SYS/broker/subscriptions/", "$SYS/broker/shared_subscriptions/")
"""Topics that an observer can do without."""
RESYNC_DELAY_S = 1.0
"""Seconds from the first sign of a missed change to reading the history: signs come in bursts, and
a broker writes its files with delay."""

RESYNC_RETRY_S = 60.0
RESYNC_RETRY_MAX_S = 3_600.0
"""Seconds until the history is read again while the observer is incomplete: the file may have
become readable. The time doubles up to the maximum, because a long log takes seconds to read."""

RETAINED_DELAY_S = 0.05
"""Seconds from the subscription to the first reading of the history. The broker's retained counters
arrive meanwhile and may confirm at once that everything is known."""

SETTLE_MAX_S = 2.0
"""Seconds after a connection for which the previous interest stays in force until the history is
read. A slower history is not waited for."""

CONFIRMATION_TIMEOUT_S = 15.0
"""Seconds for the broker's counters to confirm what the log shows, before the lack of it is an
alarm. Mosquitto publishes them every `sys_interval`, by default 10 s; the interest is wide until
then. More delays the alarm at a broker whose counters stopped, less raises it at every restart."""

REFUSED = "the broker does not let the agent subscribe to"

LOG_TIMEOUT_S = 2.0
"""Seconds without a log line after subscribing to the log. The subscription itself should cause
one."""


class _RetryTimer:
    """Calls back after a time that doubles with every call."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._timer = DeadlineTimer(self._on_due)
        self._delay_s = RESYNC_RETRY_S

    def start(self) -> None:
        """Call back later, unless that is already planned."""
        self._timer.schedule(asyncio.get_running_loop().time() + self._delay_s)

    def cancel(self) -> None:
        """Do not call back, and begin with the shortest time again."""
        self._delay_s = RESYNC_RETRY_S
        self._timer.cancel()

    def _on_due(self) -> None:
        self._delay_s = min(2 * self._delay_s, RESYNC_RETRY_MAX_S)
        self._callback()


class ObserverClient:
    """Feeds an observer from a connection, and the node from the observer."""

    def __init__(
        self,
        observer: Observer,
        connection: ConnectionFactory,
        feed: Callable[[InterestChanged], None],
        on_finding: Callable[[ObserverFinding], None],
        histories: Sequence[SubscriptionHistory] = (),
        is_private: Callable[[str], bool] = lambda topic_filter: False,
    ) -> None:
        """`on_finding` gets what the operator should know. `histories` are read in turn until the
        observer is complete. Private filters are those of agents, not of clients."""
        self.observer = observer
        self.connection = connection(self._on_effect)
        self._feed = feed
        self._on_finding = on_finding
        self._histories = histories
        self._is_private = is_private
        self._resync_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retry = _RetryTimer(lambda: self._start_resync(0.0))
        self._is_interest_reported = False
        self._log_timer: asyncio.TimerHandle | None = None
        self._confirmation_timer: asyncio.TimerHandle | None = None
        self._extra: tuple[str, ...] = ()
        """Topics subscribed to in addition, on this connection."""
        self.filters_when_unknown: tuple[str, ...] = ()
        self.on_incomplete: Callable[[str], None] = lambda reason: None
        """Called with the reason why subscriptions may be unknown, and with an empty text when all
        are known."""
        self._reported_reason = ""
        self._log_problem = ""
        """Why the broker's messages do not reach the observer, whatever it knows; empty if they do.
        """
        self._is_settling = True
        """Whether the history of a new connection is being read; until then the interest is not
        widened."""
        self._settling: asyncio.TimerHandle | None = None
        self.wide: tuple[str, ...] = ()
        """Filters announced only because subscriptions may be unknown."""

    @property
    def complete(self) -> bool:
        """Whether every subscription at the broker is known."""
        return self.observer.is_complete and not self._log_problem

    @property
    def reason(self) -> str:
        """Why subscriptions may be unknown; empty if all are known."""
        return self._log_problem or self.observer.incomplete_reason

    def snapshot(self) -> ObserverSnapshot:
        """Return what must survive a restart of the agent."""
        return {**self.observer.snapshot(), "wide": list(self.wide)}

    def restore(self, saved: object, had_session: bool = False) -> None:
        """Start from the snapshot of an earlier incarnation; it stays in force until the broker
        confirms or corrects it. So does a wide interest: other nodes may hold publications for it.
        `had_session` says that an earlier incarnation was connected, even if it was killed before
        it saved."""
        if not isinstance(saved, dict):
            if had_session:
                self.observer.on_snapshot_missing()
            return
        try:
            change = self.observer.restore(saved, self._now())
        except UsageError as error:  # another observer was configured then
            if had_session:
                self.observer.on_snapshot_missing()
            self._on_finding(ResyncFailed(f"what was learned before cannot be used: {error}"))
        else:
            wide = saved.get("wide")
            self._apply_outputs(
                [change], wide=tuple(map(str, wide)) if isinstance(wide, list) else ()
            )

    def start(self) -> None:
        """Report known interest to the node, also if empty, unless the broker has more to add."""
        if not self.observer.topics_to_subscribe():
            change = self.observer.on_connected(session_lost=True, now=self._now())
            if self.observer.is_confirmation_pending:
                self._apply_outputs([change])
                self._wait_for_settling()
            else:
                self._is_settling = False
                self._apply_outputs([change], is_known=True)

    def subscribed_filters(self) -> tuple[str, ...]:
        """Return the subscribed filters, sorted."""
        return tuple(
            name for name in self.observer.subscribed_filters() if not self._is_private(name)
        )

    def apply_output(self, change: ObserverOutput) -> None:
        """Report changes that the observer found without this connection."""
        self._apply_outputs([change])
        if self._is_settling and not self.observer.is_confirmation_pending:
            self._settle()

    def stop(self) -> None:
        """Cancel timers and tasks."""
        if self._timer is not None:
            self._timer.cancel()
        if self._settling is not None:
            self._settling.cancel()
        self._cancel_log_timer()
        self._cancel_confirmation_timer()
        self._retry.cancel()
        self._cancel_resync()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _on_effect(self, effect: effects.Effect) -> None:
        match effect:
            case effects.Connected(session_present=present):
                self._subscribe(present)
            case effects.Subscribed(subscriptions=asked) if asked[0].topic_filter in self._extra:
                pass
            case effects.Subscribed(subscriptions=asked, reasons=reasons):
                self._report_refused(asked, reasons)
                self._start_resync(RETAINED_DELAY_S)
                if not self._histories:
                    self._settle()
            case effects.PublishReceived(batch):
                now = self._now()
                is_silent = self._log_timer or self._log_problem
                if is_silent and any(p.topic.startswith(LOG_TOPICS) for p in batch):
                    self._cancel_log_timer()
                    if not self._log_problem.startswith(REFUSED):
                        self._log_problem = ""
                self._apply_outputs(
                    [self.observer.receive_publication(p.topic, p.payload, now) for p in batch]
                )
            case _:
                pass

    def _subscribe(self, session_present: bool) -> None:
        self._wait_for_settling()
        self._cancel_confirmation_timer()
        self._log_problem = ""
        self._extra = ()
        self._apply_outputs([self.observer.on_connected(not session_present, self._now())])
        self._retry.cancel()
        self._cancel_resync()
        names = self.observer.topics_to_subscribe()
        self._cancel_log_timer()
        if any(name.startswith(LOG_TOPICS) for name in names):
            loop = asyncio.get_running_loop()
            self._log_timer = loop.call_later(LOG_TIMEOUT_S, self._report_missing_log)
        self.connection.submit(inputs.Subscribe(tuple(map(packets.Subscription, names))))

    def _wait_for_settling(self) -> None:
        self._is_settling = True
        if self._settling is not None:
            self._settling.cancel()
        self._settling = asyncio.get_running_loop().call_later(SETTLE_MAX_S, self._settle)

    def _settle(self) -> None:
        """Stop waiting for the history of this connection."""
        self._is_settling = False
        self._apply_outputs([], is_known=True)

    def _cancel_log_timer(self) -> None:
        if self._log_timer is not None:
            self._log_timer.cancel()
            self._log_timer = None

    def _report_missing_log(self) -> None:
        self._log_timer = None
        reason = (
            "the broker sends no log: it needs log_dest topic and log_type subscribe, or an ACL"
        )
        self._note_log_problem(f"{reason} forbids {LOG_TOPICS}#; see hansa doctor")

    def _note_log_problem(self, reason: str) -> None:
        self._log_problem = reason
        self._on_finding(ObservationIncomplete(reason))
        self._apply_outputs([])

    def _report_refused(self, asked: Sequence[packets.Subscription], reasons: bytes) -> None:
        refused = [
            subscription.topic_filter
            for subscription, reason in zip(asked, reasons, strict=True)
            if reason >= REFUSAL_CODE_MIN and not subscription.topic_filter.startswith(COUNT_TOPICS)
        ]
        if refused:
            names = ", ".join(refused)
            self._note_log_problem(f"{REFUSED} {names}")

    def _start_resync(self, delay_s: float) -> None:
        """Read the history soon, unless that is already scheduled."""
        if self._histories and not tasks.is_running(self._resync_task):
            self._resync_task = tasks.start_task(self._resync(delay_s))

    def _cancel_resync(self) -> None:
        if self._resync_task is not None:
            self._resync_task.cancel()
            self._resync_task = None

    def _update_retry(self) -> None:
        """Plan to read the history again while it was read and the observer is incomplete."""
        if self.observer.is_complete:
            self._retry.cancel()
        elif self._resync_task is not None and not self.observer.is_confirmation_pending:
            self._retry.start()

    async def _resync(self, delay_s: float) -> None:
        """Read the history, so that the observer knows the subscriptions from before the
        connection."""
        await asyncio.sleep(delay_s)
        for history in self._histories:
            self.observer.begin_resync(self._now())
            try:
                text = await history.read()
            except UsageError as error:
                self._on_finding(ResyncFailed(str(error)))
                continue
            change = self.observer.resync(text, self._now())
            self._apply_outputs([change], is_known=self.observer.is_complete)
            if self.observer.is_complete:
                break
        self._settle()

    def _apply_outputs(
        self,
        outputs: Iterable[ObserverOutput],
        is_known: bool = False,
        wide: tuple[str, ...] | None = None,
    ) -> None:
        """Report the sum of several outputs: a burst of subscriptions is one event."""
        net_changes: dict[str, bool] = {}
        for output in outputs:
            for finding in output.findings:
                self._on_finding(finding)
                if isinstance(finding, ObservationIncomplete | SubscriptionCountMismatch):
                    self._start_resync(RESYNC_DELAY_S)
            for names, is_subscribed in ((output.removed, False), (output.added, True)):
                for name in itertools.filterfalse(self._is_private, names):
                    if net_changes.pop(name, is_subscribed) == is_subscribed:
                        net_changes[name] = is_subscribed
        self._widen(net_changes, self._wide_now() if wide is None else wide)
        if net_changes or (is_known and not self._is_interest_reported):
            self._is_interest_reported |= is_known
            added = tuple(name for name, is_added in net_changes.items() if is_added)
            removed = tuple(name for name, is_added in net_changes.items() if not is_added)
            self._feed(InterestChanged(added, removed))
        self._subscribe_besides()
        self._update_timer()
        self._update_retry()

    def _subscribe_besides(self) -> None:
        new = tuple(n for n in self.observer.extra_subscriptions() if n not in self._extra)
        if new:
            self._extra += new
            self.connection.submit(inputs.Subscribe(tuple(map(packets.Subscription, new))))

    def _wide_now(self) -> tuple[str, ...]:
        """Return what to announce in addition to the known interest; report the reason if it has
        changed."""
        if self._is_settling:
            return self.wide
        self._report_reason()
        return () if self.complete else self.filters_when_unknown

    def _report_reason(self) -> None:
        """Report why subscriptions may be unknown, unless the next counters may settle that."""
        is_pending = self.observer.is_confirmation_pending and not self._log_problem
        if is_pending and not self._reported_reason:
            if self._confirmation_timer is None:
                self._confirmation_timer = asyncio.get_running_loop().call_later(
                    CONFIRMATION_TIMEOUT_S, self._report_current_reason
                )
            return
        self._cancel_confirmation_timer()
        if self.reason != self._reported_reason:
            self._report_current_reason()

    def _report_current_reason(self) -> None:
        self._reported_reason = self.reason
        self.on_incomplete(self.reason)

    def _cancel_confirmation_timer(self) -> None:
        if self._confirmation_timer is not None:
            self._confirmation_timer.cancel()
            self._confirmation_timer = None

    def _widen(self, net: dict[str, bool], wide: tuple[str, ...]) -> None:
        """Announce these filters in addition to the known interest, replacing previous ones."""
        before, self.wide = self.wide, wide
        subscribed = set(self.subscribed_filters()) if before != wide else set()
        for name in dict.fromkeys((*before, *wide)):
            is_subscribed = name in subscribed
            was_subscribed = not net.pop(name) if name in net else is_subscribed
            was_announced = was_subscribed or name in before
            is_announced = is_subscribed or name in wide
            if was_announced != is_announced:
                net[name] = is_announced

    def _update_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.observer.next_deadline()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_at(due, self._handle_timer)

    def _handle_timer(self) -> None:
        self._apply_outputs([self.observer.handle_timer(self._now())])
