"""Selection of nodes for shares; the rules are tested in test_spec_sharing.py."""

import pytest

from hansa.protocol.interest import shared_subscriptions
from hansa.protocol.interest.shared_subscriptions import ShareSelector, TopicInterest
from hansa.protocol.model import NodeId

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def selector(*here: str, reach: tuple[NodeId, ...] = (A, B, C)) -> ShareSelector:
    return ShareSelector(lambda topic: TopicInterest(()), here.__contains__, lambda: reach)


@pytest.mark.parametrize(
    ("audience", "here", "expected"),
    [
        (TopicInterest((A, B)), (), ((A, B), 0)),
        (TopicInterest((A,), {"g": (B,)}), (), ((A, B), 0)),
        (TopicInterest((A,), {"g": (A, B)}), (), ((A,), 0)),
        (TopicInterest((A, B), {"g": (A, B)}), (), ((A, B), 1)),
        (TopicInterest((), {"g": (A, B)}), ("g",), ((), 0)),
        (TopicInterest((A,), {"g": (A, B)}), ("g",), ((A,), 1)),
        (TopicInterest((), {"g": (A,), "h": (A,)}), (), ((A,), 0)),
        (TopicInterest((), {"g": (A,), "h": (A, B)}), ("h",), ((A,), 1)),
        (TopicInterest((), {"g": (A, B), "h": (A,)}), ("h",), ((B,), 0)),
    ],
)
def test_each_share_is_served_once_where_possible(audience, here, expected):
    assert selector(*here).choose_receivers(audience, is_guaranteed=True) == expected


def test_unreachable_node_is_chosen_only_if_all_are():
    audience = TopicInterest((), {"g": (A, B)})
    assert {
        selector(reach=(B,)).choose_receivers(audience, is_guaranteed=True)[0] for _ in range(3)
    } == {(B,)}
    far = selector(reach=())
    assert {far.choose_receivers(audience, is_guaranteed=True)[0] for _ in range(3)} == {(A,), (B,)}


def test_round_robin_restarts_beyond_the_bound(monkeypatch):
    monkeypatch.setattr(shared_subscriptions, "SHARES_MAX", 1)
    made = selector()
    chosen = [
        made.choose_receivers(TopicInterest((), {name: (A, B)}), is_guaranteed=True)[0]
        for name in ("g", "h", "g", "g")
    ]
    assert chosen == [(B,), (B,), (B,), (A,)]


@pytest.mark.parametrize(("kept", "chosen"), [(True, (A,)), (False, (A, B))])
def test_unreachable_node_serves_no_share_at_qos_0(kept, chosen):
    audience = TopicInterest((A,), {"g": (A, B)})
    assert selector(reach=(B,)).choose_receivers(audience, kept) == (chosen, 0)
