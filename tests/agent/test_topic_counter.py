"""Publications per topic, counted only while a client asks."""

from hansa.agent import topic_counter
from hansa.agent.topic_counter import OTHER_TOPICS, TopicCounter
from hansa.mqtt.packets import PublishPacket
from hansa.protocol.effects import Gap
from hansa.protocol.model import NodeId, Publication


def test_captured_and_injected_publications_are_counted():
    counter = TopicCounter()
    counter.add_captured(
        [PublishPacket("a", b""), PublishPacket("a", b""), PublishPacket("b", b"")]
    )
    guaranteed = Publication(origin=NodeId(1), epoch=1, sequence=1, topic="b", payload=b"", qos=1)
    counter.add_injected([("a", b""), guaranteed, Gap(NodeId(1), 1, 1, 1, "lost")])
    assert counter.counts == {"a": [2, 1], "b": [1, 1]}


def test_topics_are_bounded(monkeypatch):
    monkeypatch.setattr(topic_counter, "TOPICS_MAX", 2)
    counter = TopicCounter()
    counter.add_captured(PublishPacket(f"t{number % 4}", b"") for number in range(12))
    assert counter.counts == {"t0": [3, 0], "t1": [3, 0], OTHER_TOPICS: [6, 0]}
