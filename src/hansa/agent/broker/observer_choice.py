"""Which observer an agent has, and where it looks for what it missed: as its settings say."""

from pathlib import Path

from hansa.agent.settings import BrokerSettings
from hansa.observers.base import Observer
from hansa.observers.beacon import BeaconObserver
from hansa.observers.history import BrokerLogFile, PrintedSubscriptionTree, SubscriptionHistory
from hansa.observers.mosquitto.observer import MosquittoObserver
from hansa.observers.static import StaticObserver


def choose_observer(broker: BrokerSettings, own_prefix: str) -> Observer:
    """Return the observer; the agent's own clients have ids with this prefix."""
    if broker.observer == "static":
        return StaticObserver(broker.filters)
    if broker.observer == "beacon":
        return BeaconObserver(broker.beacon_interval)
    return MosquittoObserver(own_prefix=own_prefix)


def choose_histories(broker: BrokerSettings) -> list[SubscriptionHistory]:
    """Return what knows of subscriptions from before."""
    found: list[SubscriptionHistory] = []
    if broker.log_file:
        found.append(BrokerLogFile(Path(broker.log_file)))
    if broker.pid_file:
        found.append(PrintedSubscriptionTree(Path(broker.pid_file), Path(broker.output_file)))
    return found
