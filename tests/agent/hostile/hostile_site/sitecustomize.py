"""Turns an agent into a hostile relay. Python imports this module at its start if its directory is
in PYTHONPATH; only the agent that plays the attacker has it there.

The agent is a member with a certificate. The file HOSTILE_FILE holds its attacks, by name:

    alter     change the payload of every QoS 1 and 2 publication that it forwards
    forge     send an altered copy beside every sealed frame that it forwards
    replay    send every sealed frame that it forwards twice
    drop      forward no publication, sealed frame or interest acknowledgement
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hansa.protocol.effects import Effect, Send
from hansa.protocol.forwarding.engine import ForwardingEngine
from hansa.protocol.interest.acks import InterestAckTracker
from hansa.protocol.model import Publication
from hansa.protocol.unicast import UnicastTransport
from hansa.protocol.wire.frames import SealedUnicast

HOSTILE_FILE = Path(os.environ["HOSTILE_FILE"])
FORGED_AHEAD = 100
"""By how much the number of a forged frame is ahead of the genuine one."""

receive_copy = ForwardingEngine.receive_copy
send = UnicastTransport.send
receive_acks = InterestAckTracker.receive_acks


def attacks() -> list[str]:
    return HOSTILE_FILE.read_text().split()


def receive_copy_as_attacker(self: Any, link: Any, publication: Any, now: float) -> list[Effect]:
    effects = receive_copy(self, link, publication, now)
    if "drop" in attacks():
        return [effect for effect in effects if not isinstance(effect, Send)]
    if "alter" not in attacks():
        return effects
    return [
        Send(effect.link, replace(effect.frame, payload=b"altered"))
        if isinstance(effect, Send) and isinstance(effect.frame, Publication) and effect.frame.qos
        else effect
        for effect in effects
    ]


def send_as_attacker(self: Any, output: Iterable[Any], now: float) -> list[Effect]:
    items: list[Any] = []
    for item in output:
        is_relayed = isinstance(item, SealedUnicast)
        if is_relayed and "drop" in attacks():
            continue
        items.append(item)
        if is_relayed and "replay" in attacks():
            items.append(item)
        if is_relayed and "forge" in attacks():
            box = item.box[:-1] + bytes((item.box[-1] ^ 1,))
            items.append(replace(item, number=item.number + FORGED_AHEAD, box=box))
    return send(self, items, now)


def receive_acks_as_attacker(self: Any, entries: Any, refusal: Any, now: float) -> Any:
    ours = self._node
    if "drop" in attacks():
        entries = [entry for entry in entries if entry.destination == ours]
    elif "forge" in attacks():
        entries = [
            entry
            if entry.destination == ours
            else replace(entry, mac=entry.mac[:-1] + bytes((entry.mac[-1] ^ 1,)))
            for entry in entries
        ]
    return receive_acks(self, entries, refusal, now)


ForwardingEngine.receive_copy = receive_copy_as_attacker  # type: ignore[method-assign]
UnicastTransport.send = send_as_attacker  # type: ignore[method-assign]
InterestAckTracker.receive_acks = receive_acks_as_attacker  # type: ignore[method-assign]
