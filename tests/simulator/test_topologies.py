"""Topology specifications: their graphs, determinism, and errors with a remedy."""

import json
from itertools import combinations

import pytest

from hansa.errors import UsageError
from hansa.simulator.topologies import (
    TOPOLOGY_EXAMPLES,
    Topology,
    connected_components,
    hop_distances,
    make_topology,
    neighbours_of,
    parse_topology,
)

WORDS = " ".join(TOPOLOGY_EXAMPLES.values())


@pytest.mark.parametrize(
    ("word", "nodes", "links"),
    [
        ("ring:3", 3, "0-1 0-2 1-2"),
        ("ring:5", 5, "0-1 0-4 1-2 2-3 3-4"),
        ("line:1", 1, ""),
        ("line:4", 4, "0-1 1-2 2-3"),
        ("star:4", 4, "0-1 0-2 0-3"),
        ("grid:2x3", 6, "0-1 0-3 1-2 1-4 2-5 3-4 4-5"),
        ("grid:1x3", 3, "0-1 1-2"),
        ("grid:3x1", 3, "0-1 1-2"),
        ("tree:6", 6, "0-1 0-2 1-3 1-4 2-5"),
        ("full:4", 4, "0-1 0-2 0-3 1-2 1-3 2-3"),
        ("random:3,2", 3, "0-1 0-2 1-2"),
        ("random:2,1", 2, "0-1"),
        ("geometric:3,1.5", 3, "0-1 0-2 1-2"),
    ],
)
def test_regular_topology_does_not_depend_on_seed(word, nodes, links):
    expected = tuple((int(a), int(b)) for a, b in (link.split("-") for link in links.split()))
    assert (
        parse_topology(word, seed=1)
        == parse_topology(word, seed=2)
        == Topology(word, nodes, expected)
    )


@pytest.mark.parametrize("word", ["random:40,3", "random:200,1.99", "geometric:60,0.2"])
def test_random_topology_depends_only_on_seed(word):
    assert parse_topology(word, seed=7) == parse_topology(word, seed=7)
    assert parse_topology(word, seed=7) != parse_topology(word, seed=8)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("nodes", "degree"), [(10, 1.8), (10, 4), (10, 9), (100, 3), (2, 1)])
def test_random_is_connected_with_the_requested_degree(nodes, degree, seed):
    topology = parse_topology(f"random:{nodes},{degree}", seed)
    assert connected_components(topology) == (tuple(range(nodes)),)
    assert len(topology.links) == round(nodes * degree / 2)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("radius", [0.001, 0.1, 0.5, 1.5])
def test_geometric_is_connected_for_any_radius(radius, seed):
    topology = parse_topology(f"geometric:50,{radius}", seed)
    assert connected_components(topology) == (tuple(range(50)),)


def test_geometric_without_close_nodes_is_a_spanning_tree():
    assert len(parse_topology("geometric:50,0.001", seed=1).links) == 49


def test_geometric_with_large_radius_is_complete():
    assert parse_topology("geometric:9,1.5", seed=1).links == tuple(combinations(range(9), 2))


def test_ten_thousand_nodes_are_possible():
    assert parse_topology("geometric:10000,0.01", seed=1).nodes == 10_000
    assert len(parse_topology("random:10000,4", seed=1).links) == 20_000


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("ring:2", "a ring needs at least 3 nodes, as in ring:3"),
        ("line:0", "a line needs at least 1 node, as in line:5"),
        ("star:1", "a star needs at least 2 nodes, as in star:8"),
        ("grid:0x3", "a grid needs at least 2 nodes, as in grid:3x3"),
        ("grid:1x1", "a grid needs at least 2 nodes, as in grid:3x3"),
        ("grid:9", "write rows x columns, as in grid:3x3"),
        ("grid:3x", "'' is not a number of nodes; write it as in grid:3x3"),
        ("grid:200x100", "20000 nodes; at most 10000 are possible"),
        ("ring:-3", "'-3' is not a number of nodes; write it as in ring:3"),
        ("ring:3.5", "'3.5' is not a number of nodes; write it as in ring:3"),
        ("ring:10001", "10001 nodes; at most 10000 are possible"),
        ("ring:٣", "'٣' is not a number of nodes; write it as in ring:3"),
        ("full:1001", "500500 links are too many; at most 500000 are possible"),
        (
            "random:10,0.1",
            "10 nodes hang together only from a mean degree of 1.8; write random:10,3",
        ),
        ("random:3,9", "3 nodes have at most 2 neighbours; write random:3,2"),
        ("random:10", "write a number of nodes and a mean degree, as in random:50,4"),
        ("random:10,many", "'many' is not a mean degree; write it as in random:50,4"),
        ("random:10,nan", "'nan' is not a mean degree; write it as in random:50,4"),
        ("random:10000,200", "1000000 links are too many; at most 500000 are possible"),
        (
            "geometric:9,0",
            "the radius must be above 0 and at most 1.5, as in geometric:100,0.15",
        ),
        ("geometric:5000,0.9", "more than 500000 links; write a smaller radius"),
        ("ring", "say how many after 'ring', as in ring:3"),
        ("file:", "say which file after 'file', as in file:links.json"),
        ("ring:", "say how many after 'ring', as in ring:3"),
        ("rign:3", f"did you mean 'ring:3'? write one of {WORDS}"),
        ("moebius:3", f"write one of {WORDS}"),
        ("", f"write one of {WORDS}"),
    ],
)
def test_invalid_topology_is_refused_with_remedy(word, problem):
    with pytest.raises(UsageError) as refusal:
        parse_topology(word, seed=1)
    assert str(refusal.value) == f"topology {word!r}: {problem}"


@pytest.mark.parametrize(
    "text", ['{"links": [[0, 1], [2, 1], [1, 0]]}', "0-1\n\n# more\n2 1 # too\n0-1"]
)
def test_file_of_numbers_keeps_numbers(tmp_path, text):
    path = tmp_path / "links"
    path.write_text(text)
    assert parse_topology(f"file:{path}", seed=1) == Topology(f"file:{path}", 3, ((0, 1), (1, 2)))


@pytest.mark.parametrize("text", ['{"links": [["b", "a"], ["a", 7]]}', "b-a\na-7\n"])
def test_file_of_names_numbers_in_order_of_appearance(tmp_path, text):
    path = tmp_path / "links"
    path.write_text(text)
    topology = parse_topology(f"file:{path}", seed=1)
    assert (topology.links, topology.labels) == (((0, 1), (1, 2)), ("b", "a", "7"))
    assert [topology.node_label(node) for node in range(3)] == ["b", "a", "7"]
    assert topology.find_node("a") == 1


def test_file_may_have_several_components(tmp_path):
    path = tmp_path / "links"
    path.write_text("0-1\n2-3\n")
    assert connected_components(parse_topology(f"file:{path}", seed=1)) == ((0, 1), (2, 3))


LINES = "write two numbers or names, as in 0-1 or paris london, without - : , | >"
JSON = "write two numbers or names, as in [0, 1], without blanks and - : , | >"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0-1\n2-2\n", "{path}: 2-2 links a node to itself; remove that link"),
        ("0-1-2\n", "{path} line 1: '0-1-2' is no link; {lines}"),
        ("0-1\n3\n", "{path} line 2: '3' is no link; {lines}"),
        ("0-\n", "{path} line 1: '0-' is no link; {lines}"),
        ("", '{path}: no links; write {"links": [[0, 1]]} or lines like 0-1'),
        ('{"links": []}', '{path}: no links; write {"links": [[0, 1]]} or lines like 0-1'),
        ("0-1\n1-3\n", "{path}: there is a node 3 but no node 2; number the nodes from 0 without"
         " holes, or use names"),
        ("{", "{path} is not JSON: Expecting property name enclosed in double quotes: line 1"
         " column 2 (char 1)"),
        ("[[0, 1]]", '{path}: write an object with "links", as in {"links": [[0, 1]]}'),
        ('{"links": 3}', '{path}: write an object with "links", as in {"links": [[0, 1]]}'),
        ('{"links": [[0, 1, 2]]}',
         "{path}: [0, 1, 2] is no link; {json}"),
        ('{"links": [[0, 1.5]]}',
         "{path}: [0, 1.5] is no link; {json}"),
        ("a-b\na-c 5\n", "{path} line 2: 'a-c 5' is no link; {lines}"),
        ("paris lo:ndon\n", "{path} line 1: 'paris lo:ndon' is no link; {lines}"),
        ('{"links": [["new york", 1]]}', '{path}: ["new york", 1] is no link; {json}'),
        (b"\xff\xfe\x00", "{path} is not a text file"),
    ],
)  # fmt: skip
def test_invalid_file_is_refused_with_remedy(tmp_path, text, problem):
    path = tmp_path / "links"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as refusal:
        parse_topology(f"file:{path}", seed=1)
    for name, words in (("{path}", str(path)), ("{lines}", LINES), ("{json}", JSON)):
        problem = problem.replace(name, words)
    assert str(refusal.value) == problem


def test_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="^cannot read .*/nowhere: no such file or directory$"):
        parse_topology(f"file:{tmp_path}/nowhere", seed=1)


def test_large_file_is_refused(tmp_path):
    path = tmp_path / "links.json"
    path.write_text(json.dumps({"links": [[0, node] for node in range(1, 10_001)]}))
    with pytest.raises(UsageError, match="10001 nodes; 1 to 10000 are possible"):
        parse_topology(f"file:{path}", seed=1)


@pytest.mark.parametrize(
    ("nodes", "links", "labels"),
    [
        (0, (), ()),
        (2, ((1, 0),), ()),
        (2, ((0, 0),), ()),
        (2, ((0, 2),), ()),
        (3, ((1, 2), (0, 1)), ()),
        (2, ((0, 1), (0, 1)), ()),
        (2, ((0, 1),), ("only one",)),
    ],
)
def test_topology_has_one_canonical_form(nodes, links, labels):
    with pytest.raises(UsageError):
        Topology("bad", nodes, links, labels)


def test_make_topology_normalises_links():
    assert make_topology("any", 3, [(2, 1), (1, 0), (0, 1)]).links == ((0, 1), (1, 2))


def test_neighbours_distances_and_components():
    topology = make_topology("two parts", 6, [(0, 1), (1, 2), (2, 0), (2, 3), (4, 5)])
    assert neighbours_of(topology) == ((1, 2), (0, 2), (0, 1, 3), (2,), (5,), (4,))
    assert hop_distances(topology, 3) == {3: 0, 2: 1, 0: 2, 1: 2}
    assert connected_components(topology) == ((0, 1, 2, 3), (4, 5))


@pytest.mark.parametrize("text", ["3", "-1", "x", "", "٢", "9" * 5000])
def test_unknown_node_is_refused(text):
    with pytest.raises(UsageError) as refusal:
        parse_topology("ring:3", seed=1).find_node(text)
    assert str(refusal.value) == f"there is no node {text!r} in ring:3; its nodes are 0 to 2"
