"""The subscription tree as printed by Mosquitto 2.0.11."""

from hypothesis import given
from hypothesis import strategies as st
from tests.agent.broker.model import Branch

from hansa.observers.mosquitto.subscription_tree import SubscriptionTree, find_last_tree

# Copied from a broker, with other log lines around it.
PRINTED = """\
1794790121: New client connected from 127.0.0.1:46780 as zz (p5, c1, k30).
    
      
        al
          1 (alice, 1) (id (odd, 1) x, 0)
        t
          # (alice, 1) (id (odd, 1) x, 0)
        a b
          c (alice, 1)
        
          lead (alice, 1)
        trail
           (alice, 1)
         one
           spaced (alice, 1)
        Room (west) (alice, 2)
          y (a, b)
    $SYS
      $SYS
        broker
          uptime (hansa-obs, 0)
        x (alice, 1)
    $foo
      $foo (alice, 0)
        bar (alice, 1)
    
      
        s
          1
          +
            x
        $SYS
          q
1794790122: Client zz disconnected.
"""  # noqa: W293

ALICE = (
    "al/1",
    "t/#",
    "a b/c",
    "/lead",
    "trail/",
    " one/ spaced",
    "Room (west)",
    "$SYS/x",
    "$foo",
    "$foo/bar",
)


def test_tree_of_broker_is_parsed():
    assert find_last_tree(PRINTED) == SubscriptionTree(
        filters={
            "alice": ALICE,
            "id (odd, 1) x": ("al/1", "t/#"),
            "hansa-obs": ("$SYS/broker/uptime",),
        },
        shared=("s/1", "s/+/x", "$SYS/q"),
        possibly_shared=("s", "s/+", "$SYS"),
        is_complete=True,
    )


def test_last_tree_is_used():
    later = "    \n      \n        new (bob, 0)\n    $SYS\n    \n"
    expected = SubscriptionTree({"bob": ("new",)}, (), (), is_complete=True)
    assert find_last_tree(PRINTED + later) == expected
    assert find_last_tree(PRINTED + later + "1794790123: x\n") == expected
    assert (
        find_last_tree(PRINTED.rpartition("1794790122")[0] + later) == expected
    )  # without lines between


def test_tree_without_second_part_is_incomplete():
    cut = PRINTED[: PRINTED.index("    $foo")]
    assert find_last_tree(cut) == SubscriptionTree({}, (), (), is_complete=False)
    assert find_last_tree(PRINTED + cut) == SubscriptionTree({}, (), (), is_complete=False)
    assert find_last_tree("    indented\n") == SubscriptionTree({}, (), (), is_complete=False)


def test_text_without_tree_returns_none():
    assert find_last_tree("1794790122: Client zz disconnected.\n") is None
    assert find_last_tree("") is None


def test_tree_of_empty_broker_is_parsed():
    assert find_last_tree("    \n    $SYS\n    \n") == SubscriptionTree(
        {}, (), (), is_complete=True
    )


def test_unbalanced_brackets_in_names_are_parsed():
    text = "    \n      \n        :-( (bob, 0)\n        x (:-), 1)\n        (, 1)\n    $SYS\n    \n"
    assert find_last_tree(text) == SubscriptionTree(
        {"bob": (":-(",), ":-)": ("x",)}, (), (), is_complete=True
    )


level = st.text(st.sampled_from("ab+ é,0"), max_size=5).filter(
    lambda text: text != " " and not text.startswith("  ")
)
name = st.lists(level, min_size=1, max_size=4).map("/".join).filter(bool)
client = st.text(st.sampled_from("ab 0,"), min_size=1, max_size=6)


@given(st.dictionaries(client, st.sets(name, min_size=1), max_size=5))
def test_printed_tree_is_parsed(held):
    tree: Branch = {}
    for who, names in held.items():
        for text in sorted(names):
            branch = tree
            for part in ["", "", *text.split("/")]:
                branch = branch.setdefault(part, {})
            branch.setdefault(None, []).append(who)
    lines = [*_print(tree or {"": {}}, 0), "    $SYS", "    "]
    found = find_last_tree("\n".join(lines) + "\n")
    assert found is not None
    assert {who: set(names) for who, names in found.filters.items()} == held


def _print(tree, depth):
    for part, branch in tree.items():
        if part is not None:
            holders = "".join(f" ({who}, 1)" for who in branch.get(None, ()))
            yield "  " * (depth + 2) + part + holders
            yield from _print(branch, depth + 1)
