"""Chooses the observer from the settings, with its source and its histories."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hansa.agent.alarms import Alarms
from hansa.agent.broker.connections import BrokerConnections
from hansa.agent.broker.settings import BrokerSettings
from hansa.agent.settings import AgentSettings
from hansa.errors import UsageError, install_extra
from hansa.observers.base import Observer, ObserverOutput
from hansa.observers.beacon import BeaconObserver
from hansa.observers.history import BrokerLogFile, PrintedSubscriptionTree, SubscriptionHistory
from hansa.observers.mosquitto.observer import MosquittoObserver
from hansa.observers.static import StaticObserver
from hansa.observers.topics import TopicsObserver

if TYPE_CHECKING:  # amqtt is an optional dependency
    from hansa.agent.broker.embedded import EmbeddedBroker, EmbeddedObserver
    from hansa.agent.broker.proxy import Handover


class ObserverSource(Protocol):
    """An observer, and the part of the agent that reports to it what happens at the broker."""

    counters: Counter[str]
    on_observer_output: Callable[[ObserverOutput], None]
    """Called with outputs that do not come from publications."""

    @property
    def observer(self) -> Observer: ...

    async def listen(self) -> None:
        """Bind addresses; raise UsageError if that fails."""

    async def run(self) -> None:
        """Work until cancelled."""

    def stop(self) -> None:
        """Close what is open."""

    def status(self) -> dict[str, object]:
        """Return what `/status` shows below `broker`."""

    def reload(self, settings: AgentSettings, changed: frozenset[str]) -> frozenset[str]:
        """Apply changed settings, as `Reloadable` says."""


class SourceChooser(Protocol):
    """`choose_source`, maybe with a handover."""

    def __call__(
        self,
        settings: AgentSettings,
        connections: BrokerConnections,
        state_path: Path,
        alarms: Alarms,
        is_agent_subscribed: Callable[[], bool],
    ) -> ObserverSource: ...


class PublicationSource:
    """The source of an observer that gets publications, or knows everything already: there is
    nothing to do."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.counters: Counter[str] = Counter()
        self.on_observer_output: Callable[[ObserverOutput], None] = lambda output: None

    async def listen(self) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()

    def stop(self) -> None:
        pass

    def status(self) -> dict[str, object]:
        return {}

    def reload(self, settings: AgentSettings, changed: frozenset[str]) -> frozenset[str]:
        return frozenset()


def choose_source(
    settings: AgentSettings,
    connections: BrokerConnections,
    state_path: Path,
    alarms: Alarms,
    is_agent_subscribed: Callable[[], bool],
    handover: "Handover | None" = None,
) -> ObserverSource:
    """Return the observer with its source. `is_agent_subscribed` says whether the broker has a
    subscription of the agent's main client; `handover` is what a proxy takes over."""
    broker, own_prefix = settings.broker, connections.client_id_prefix
    if broker.observer == "embedded":
        return PublicationSource(import_embedded()[1]())
    if broker.observer == "proxy":
        from hansa.agent.broker.proxy import make_proxy  # memory of the other agents

        return make_proxy(settings, state_path, alarms, handover)
    if broker.observer == "rest":
        from hansa.agent.broker.own_subscription import OwnSubscription
        from hansa.agent.broker.rest_poller import RestPoller

        own = OwnSubscription(connections.factory("observer"))
        return RestPoller(settings.rest, own_prefix, is_agent_subscribed, own)
    if broker.observer == "topics":
        topics = settings.topics
        return PublicationSource(TopicsObserver(topics.kind, own_prefix, topics.agent_first))
    return PublicationSource(choose_observer(broker, own_prefix))


def choose_observer(broker: BrokerSettings, own_prefix: str) -> Observer:
    """Return an observer that needs publications of the broker only, or nothing."""
    match broker.observer:
        case "static":
            return StaticObserver(broker.filters)
        case "beacon":
            return BeaconObserver(broker.beacon_interval)
        case "mosquitto":
            return MosquittoObserver(own_prefix=own_prefix)
    raise ValueError(f"observer {broker.observer!r} is not made here")


def import_embedded() -> "tuple[type[EmbeddedBroker], type[EmbeddedObserver]]":
    """Return the embedded broker and its observer, whose dependency is optional."""
    try:
        from hansa.agent.broker.embedded import EmbeddedBroker, EmbeddedObserver
    except ImportError as error:
        hint = f"the embedded broker is amqtt: {install_extra('embedded')}"
        raise UsageError(f'[broker] observer = "embedded": {hint}') from error
    return EmbeddedBroker, EmbeddedObserver


def choose_histories(broker: BrokerSettings) -> list[SubscriptionHistory]:
    """Return the sources of subscriptions from before the agent connected."""
    found: list[SubscriptionHistory] = []
    if broker.log_file:
        database = Path(broker.persistence_file) if broker.persistence_file else None
        found.append(BrokerLogFile(Path(broker.log_file), database))
    if broker.pid_file:
        found.append(PrintedSubscriptionTree(Path(broker.pid_file), Path(broker.output_file)))
    return found
