"""`hansa chaos`: a short play, its table and its file; refusals in one line."""

import json

import pytest

from hansa.cli.main import main


@pytest.mark.usefixtures("mosquitto")
def test_a_play_ends_with_a_table_and_a_file(tmp_path, capsys):
    results = tmp_path / "results.json"
    given = ["chaos", "calm", "--topology", "ring:3", "--seconds", "1", "--json", str(results)]
    assert main(given) == 0
    assert "calm: every promise kept" in capsys.readouterr().out
    calm = json.loads(results.read_text())["calm"]
    assert calm["broken"] == []
    assert calm["fates"]["ok"] > 0
    assert calm["published"] > 0


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["nonsense"], "nonsense"),
        ([], "SCENARIO"),
        (["calm", "--topology", "moebius:3"], "moebius"),
        (["calm", "--rate", "0"], "--rate"),
    ],
)
def test_what_cannot_be_played_is_one_line(given, problem, capsys):
    assert main(["chaos", *given]) == 2
    said = capsys.readouterr().err.strip()
    assert problem in said
    assert "Traceback" not in said
