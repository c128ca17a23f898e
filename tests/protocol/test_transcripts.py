"""Golden transcripts: inputs and effects of whole scenarios are in `transcripts/`, one file each.

After an intended change: `pytest tests/protocol/test_transcripts.py --rewrite`, then review the
difference like code.
"""

from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path

import pytest
from tests.protocol.transcript import GROUP, transcript
from tests.protocol.wire_of_nodes import Wire, key

from hansa.protocol.model import Identity, NodeId

FOLDER = Path(__file__).parent / "transcripts"
TOPIC = "plant/temp"


def settled(links: str, *wanting: int) -> Wire:
    """Converged nodes with interest, before the scenario begins."""
    wire = Wire(links)
    for place in wanting:
        wire.subscribe(place, GROUP)
        wire.run(1.0)
    wire.log.clear()
    wire.run(0.5)  # heartbeats have just passed
    return wire


def publish(wire: Wire, place: int, reading: str) -> None:
    wire.publish(place, TOPIC, reading.encode())
    wire.run(0.1)


def three_brokers_one_message() -> Wire:
    """Three brokers in a line. A client of 3 subscribes to plant/+, a client of 1 publishes.

    The nodes exchange their records; 1 has the smallest id and is core of the management group. 3
    is the first node interested in plant/+ and so its core: one announcement and one record reach
    all nodes, both brokers grant the subscription, and 3 gets the acknowledgements. Then the
    message is forwarded towards the core, which is also the only subscriber.
    """
    wire = Wire("1-2 2-3")
    wire.subscribe(3, GROUP)
    wire.run(0.5)
    publish(wire, 1, "21.5")
    return wire


def core_dies() -> Wire:
    """Four brokers in a ring. 3 is core of plant/+, in which 1 and 4 are interested as well. Then 3
    dies.

    Its neighbours notice, lose their route to it and request one in vain. As soon as 4 knows that 3
    is unreachable, it takes over, because it was nearest. 2, which has no interest, publishes and
    reaches both.
    """
    wire = settled("1-2 2-3 3-4 4-1", 3, 1, 4)
    wire.stop(3)
    wire.run(0.1)
    publish(wire, 2, "21.5")
    return wire


def link_cut() -> Wire:
    """Two routes lead from 4 to the core 1: by 2 and by 3. The link between 2 and 4 is cut.

    3 continues at once and no request is needed; 2 has no reason left to be a member, and withdraws
    after the linger.
    """
    wire = settled("1-2 1-3 2-4 3-4", 1, 4)
    wire.cut("2-4")
    wire.run(0.1)
    publish(wire, 1, "21.5")
    wire.run(0.7)
    return wire


def two_cores_meet() -> Wire:
    """Two federations of two, each with a core of plant/+: 1 and 4. A link joins 2 and 3.

    Databases are compared, both cores learn of each other, and the smaller id stays. 4 withdraws
    its claim, gets a route to 1 and joins that mesh.
    """
    wire = Wire("1-2 3-4")
    wire.subscribe(1, GROUP)
    wire.subscribe(4, GROUP)
    wire.run(1.5)
    wire.log.clear()
    wire.join("2-3")
    wire.run(0.2)
    publish(wire, 1, "21.5")
    return wire


def agent_restarts() -> Wire:
    """1 publishes, is killed, starts again with its next incarnation and publishes again.

    It numbers its publications from 1 again. The receiver distinguishes them from those of the
    earlier incarnation and delivers them.
    """
    wire = settled("1-2", 2)
    publish(wire, 1, "21.5")
    wire.stop(1)
    wire.run(0.1)
    wire.start(1, Identity(NodeId(1), key(1), incarnation=2))
    wire.join("1-2")
    wire.run(0.2)
    publish(wire, 1, "22.0")
    return wire


def message_arrives_twice() -> Wire:
    """Two paths lead from 4 to the core 1, and with redundancy 2 a message takes both.

    4 delivers the first copy and forwards it; 3 has it already, and 4 itself drops the second copy.
    """
    wire = settled("1-2 1-3 2-4 3-4", 1, 4)
    publish(wire, 1, "21.5")
    return wire


STORIES: list[Callable[[], Wire]] = [
    three_brokers_one_message,
    core_dies,
    link_cut,
    two_cores_meet,
    agent_restarts,
    message_arrives_twice,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_transcript_equals_the_recording(story, rewrite):
    text = "\n".join([cleandoc(story.__doc__), *transcript(story())]) + "\n"
    file = FOLDER / f"{story.__name__}.txt"
    if rewrite:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_every_recording_has_a_scenario():
    assert {file.stem for file in FOLDER.iterdir()} == {story.__name__ for story in STORIES}
