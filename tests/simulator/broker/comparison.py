"""Play a random script against the model and a real broker, and compare packet for packet."""

import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import asdict
from tests.simulator.broker.real_broker import RealBroker
from tests.simulator.broker.scripts import (
    Connect,
    Cut,
    FixedScript,
    RestartBroker,
    Script,
    SendPacket,
    Step,
    Wait,
)

from hansa.mqtt.packets import AnyPacket
from hansa.simulator.broker import (
    CloseConnection,
    Effect,
    MosquittoModel,
    MosquittoSettings,
    SendToClient,
)


class Difference(AssertionError):
    """The model and the real broker did not send the same."""


def compare(
    command: tuple[str, ...],
    directory: Path,
    script: Script | FixedScript,
    make_model: Callable[[MosquittoSettings], MosquittoModel] = MosquittoModel,
) -> int:
    """Play a script; return the number of packets compared."""
    model = make_model(script.settings)
    real = RealBroker(command, directory, script.settings)
    history: list[Step] = []
    count = 0
    now = 0.0
    try:
        for _ in range(script.length):
            step = script.draw_step()
            history.append(step)
            if isinstance(step, Wait):
                now += step.seconds
            expected, closed = sort_by_connection(play_on_model(model, step, now))
            try:
                actual = play_on_real(real, step, closed)
            except AssertionError as error:
                raise Difference(
                    f"{describe(script, history)}\n{error}\nmodel {expected}"
                ) from None
            for connection_id in sorted(expected.keys() | actual.keys()):
                ours, theirs = expected.get(connection_id, []), actual.get(connection_id, [])
                if ours != theirs:
                    raise Difference(
                        f"{describe(script, history)}\nconnection {connection_id}\n"
                        f"model  {ours}\nbroker {theirs}"
                    )
                count += len(ours)
                for packet in ours:
                    script.note_output(connection_id, packet)
            for connection_id in closed:
                script.note_closed(connection_id)
    finally:
        real.stop()
    return count


def play_on_model(model: MosquittoModel, step: Step, now: float) -> list[Effect]:
    match step:
        case Connect() | SendPacket():
            return model.receive(step.connection_id, step.packet, now)
        case Cut():
            return model.disconnected(step.connection_id, now)
        case RestartBroker():
            return model.restart(step.kind, now)
        case Wait():
            model.advance(now)
            return []


def play_on_real(real: RealBroker, step: Step, closed: set[int]) -> dict[int, list[AnyPacket]]:
    match step:
        case Connect():
            real.connect(step.connection_id, step.packet)
        case SendPacket():
            real.send(step.connection_id, step.packet)
        case Cut():
            real.cut(step.connection_id)
        case RestartBroker():
            return real.restart(step.kind)
        case Wait():
            time.sleep(step.seconds)
            return real.settle(closed)
    return real.settle(closed, step.connection_id)


def sort_by_connection(effects: list[Effect]) -> tuple[dict[int, list[AnyPacket]], set[int]]:
    """Return the packets sent by connection, and the connections closed."""
    sent: dict[int, list[AnyPacket]] = {}
    closed = set()
    for effect in effects:
        match effect:
            case SendToClient():
                sent.setdefault(effect.connection_id, []).append(effect.packet)
            case CloseConnection():
                closed.add(effect.connection_id)
    return sent, closed


def describe(script: Script | FixedScript, history: list[Step]) -> str:
    lines = [
        f"{index:3} {step}" + (f" {asdict(step.packet)}" if isinstance(step, Connect) else "")
        for index, step in enumerate(history)
    ]
    return "\n".join((str(script.settings), *lines))
