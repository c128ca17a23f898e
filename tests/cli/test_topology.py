import json

from hansa.cli.main import main


def test_compare_shows_one_line_per_rule(capsys):
    assert main(["topology", "compare", "--nodes", "6"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("6 nodes join one by one")
    assert [line.split("  ")[0].strip() for line in lines[2:5]] == [
        "paper",
        "planner",
        "planner, measured",
    ]


def test_compare_speaks_json_and_the_same_seed_says_the_same(capsys):
    said = []
    for _ in range(2):
        assert main(["topology", "compare", "--nodes", "5", "--json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert [score["rule"] for score in json.loads(said[0])][0] == "paper"
