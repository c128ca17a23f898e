import json
import xml.etree.ElementTree as ET

from hansa.manager.graph import (
    GraphLink,
    GraphNode,
    TopologyGraph,
    as_dot,
    as_json,
    as_svg,
    as_text,
    read_graph,
)

GRAPH = TopologyGraph(
    [
        GraphNode(0, "plant <1>", "up", False, 0.42),
        GraphNode(1, 'a "b"', "up", True, None),
        GraphNode(2, "", "gone", False, None),
    ],
    [GraphLink(0, 1, "planned", True, 1.25), GraphLink(1, 2, "operator", False, None)],
)


def test_text_has_a_line_per_node():
    assert as_text(GRAPH) == (
        '0  plant <1>  up  0.4 ms  — 1\n1  a "b"  draining  — 0 2?\n2  -  gone  — 1?'
    )
    assert as_text(TopologyGraph([GraphNode(0, "", "up", False, None)], [])) == "0  -  up  — none"


def test_json_and_dot_have_the_same_graph():
    shown = json.loads(as_json(GRAPH))
    assert [link["a"] for link in shown["links"]] == [0, 1]
    lines = as_dot(GRAPH).splitlines()
    assert lines[0] == "graph hansa {"
    assert '  1 [label="1 a \\"b\\""];' in lines
    assert '  0 -- 1 [label="1.2 ms"];' in lines
    assert '  1 -- 2 [label="", style=dashed];' in lines
    assert lines[-1] == "}"


def test_svg_is_valid_and_complete():
    picture = ET.fromstring(as_svg(GRAPH))
    space = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{space}circle")) == 3
    assert len(picture.findall(f"{space}line")) == 2
    assert [text.text for text in picture.findall(f"{space}text")] == ["0", "1", "2"]


def test_link_of_a_node_that_joined_between_the_requests_is_omitted():
    class Api:
        url = ""

        def request(self, path: str) -> list[dict[str, object]]:
            node = {"id": 0, "name": "", "state": "up", "draining": False, "latency": None}
            link = {"a": 0, "b": 1, "origin": "planned", "established": True, "rtt_ms": None}
            return [node] if path == "/nodes" else [link]

    graph = read_graph(Api())  # type: ignore[arg-type]
    assert ([node.id for node in graph.nodes], graph.links) == ([0], [])
