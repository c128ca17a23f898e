"""Chooses the observer and its histories from the settings."""

from pathlib import Path

from hansa.agent.settings import BrokerSettings
from hansa.observers.base import Observer
from hansa.observers.beacon import BeaconObserver
from hansa.observers.history import BrokerLogFile, PrintedSubscriptionTree, SubscriptionHistory
from hansa.observers.mosquitto.observer import MosquittoObserver
from hansa.observers.static import StaticObserver


def choose_observer(broker: BrokerSettings, own_prefix: str) -> Observer:
    """Return the observer. `own_prefix` identifies the agent's own clients."""
    match broker.observer:
        case "static":
            return StaticObserver(broker.filters)
        case "beacon":
            return BeaconObserver(broker.beacon_interval)
        case "mosquitto":
            return MosquittoObserver(own_prefix=own_prefix)
    raise ValueError(f"observer {broker.observer!r} is not made here")


def choose_histories(broker: BrokerSettings) -> list[SubscriptionHistory]:
    """Return the sources of subscriptions from before the agent connected."""
    found: list[SubscriptionHistory] = []
    if broker.log_file:
        found.append(BrokerLogFile(Path(broker.log_file)))
    if broker.pid_file:
        found.append(PrintedSubscriptionTree(Path(broker.pid_file), Path(broker.output_file)))
    return found
