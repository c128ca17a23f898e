"""A model of an MQTT broker that behaves as Mosquitto 2.0.11 or 2.1.2 does, packet by packet.

Pure and deterministic: packets in, effects out, time as an argument. The same random scripts run
against the model and against a real Mosquitto (`tests/simulator/broker/test_conformance.py`), so
the model also has Mosquitto's peculiarities. The comments name those that are not what the standard
says, or that matter to an agent.

Not modelled: $SYS and $CONTROL topics, access control, keep-alive, topic aliases, the client's
Maximum Packet Size, slow sockets, delayed wills, limits in bytes, queued QoS 0 publications, and
more than 65,535 publications in flight to one client. In 2.1 wills are modelled as in 2.0.
"""

from hansa.simulator.broker.broker import MosquittoModel, Restart
from hansa.simulator.broker.effects import CloseConnection, Effect, SendToClient
from hansa.simulator.broker.settings import MosquittoSettings, MosquittoVersion

__all__ = [
    "CloseConnection",
    "Effect",
    "MosquittoModel",
    "MosquittoSettings",
    "MosquittoVersion",
    "Restart",
    "SendToClient",
]
