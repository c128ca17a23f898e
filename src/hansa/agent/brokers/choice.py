"""Which observer an agent has, and where it looks for what it missed: as its settings say."""

from pathlib import Path

from hansa.agent.brokers.beacon import BeaconObserver
from hansa.agent.brokers.history import History, LogFile, PrintedTree
from hansa.agent.brokers.mosquitto import MosquittoObserver
from hansa.agent.brokers.observer import Observer
from hansa.agent.brokers.static import StaticObserver
from hansa.agent.settings import BrokerSettings


def choose_observer(broker: BrokerSettings, own_prefix: str) -> Observer:
    """Return the observer; the agent's own clients have ids with this prefix."""
    if broker.observer == "static":
        return StaticObserver(broker.filters)
    if broker.observer == "beacon":
        return BeaconObserver(broker.beacon_interval)
    return MosquittoObserver(own_prefix=own_prefix)


def choose_histories(broker: BrokerSettings) -> list[History]:
    """Return what knows of subscriptions from before."""
    found: list[History] = []
    if broker.log_file:
        found.append(LogFile(Path(broker.log_file)))
    if broker.pid_file:
        found.append(PrintedTree(Path(broker.pid_file), Path(broker.output_file)))
    return found
