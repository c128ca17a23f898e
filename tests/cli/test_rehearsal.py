"""A script that asks for what cannot be done is refused before it is played."""

import pytest

from hansa.cli.script import parse_script
from hansa.errors import UsageError
from hansa.simulator.topologies import parse_topology

LINE = parse_topology("line:4", 0)


def refusal(*texts: str) -> str | None:
    try:
        parse_script(texts, LINE, start_s=3.0, length_s=10.0)
    except UsageError as problem:
        return str(problem)
    return None


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        (["2 cut 0-2"], "step '2 cut 0-2': 0 and 2 are not linked then; 0 is linked to 1"),
        (["2 silence 1>3"], "step '2 silence 1>3': 1 and 3 are not linked then;"
         " 1 is linked to 0, 2"),
        (["2 flap 0-3 5 Hz 1 s"], "step '2 flap 0-3 5 Hz 1 s': 0 and 3 are not linked then;"
         " 0 is linked to 1"),
        (["5 mend 1-0", "2 unlink 0-1"], "step '5 mend 1-0': 1 and 0 are not linked then;"
         " 1 is linked to 2"),
        (["2 unlink 0-1", "3 unlink 0-1"], "step '3 unlink 0-1': 0 and 1 are not linked then;"
         " 0 is linked to nobody"),
        (["2 link 0-1"], "step '2 link 0-1': 0 and 1 are linked already"),
        (["2 link 1-1"], "step '2 link 1-1': a node cannot be linked to itself"),
        (["2 partition 0,1,2,3"], "step '2 partition 0,1,2,3': name two sides or more, as in"
         " 'partition 0,1|2,3'"),
        (["2 partition 0,1|1,2"], "step '2 partition 0,1|1,2': node 1 is named twice"),
        (["2 partition 0|2,3"], "step '2 partition 0|2,3': no link joins these sides, so there is"
         " nothing to cut"),
        (["1 crash 2", "2 vanish 2"], "step '2 vanish 2': node 2 is not running then; restart it"
         " first"),
        (["2 freeze 2 1 s", "1 crash 2"], "step '2 freeze 2 1 s': node 2 is not running then;"
         " restart it first"),
        (["1 freeze 2 4 s", "2 freeze 2 1 s"], "step '2 freeze 2 1 s': node 2 is frozen already"),
        (["20 heal"], "step '20 heal' comes after the end; give --duration 20 or more"),
        (["8 freeze 2 4 s"], "step '8 freeze 2 4 s' lasts beyond the end; give --duration 12 or"
         " more"),
        (["8 stall 2 4 s"], "step '8 stall 2 4 s' lasts beyond the end; give --duration 12 or"
         " more"),
        (["8 restart-broker 2 4 s"], "step '8 restart-broker 2 4 s' lasts beyond the end; give"
         " --duration 12 or more"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(script, problem):
    assert refusal(*script) == problem


@pytest.mark.parametrize(
    "script",
    [
        ["2 link 0-2", "3 cut 2-0", "4 mend 0-2", "5 unlink 0-2", "6 link 0-2"],
        ["5 cut 0-2", "2 link 0-2"],
        ["1 crash 2", "2 restart 2", "3 vanish 2", "4 restart 2 without state", "5 crash 2"],
        ["1 freeze 2 4 s", "2 heal", "3 freeze 2 1 s", "3.5 restart 2", "3.6 freeze 2 1 s"],
        ["1 partition 0,1|2", "2 partition 0|1|2|3"],
        ["10 heal"],
    ],
)
def test_what_an_earlier_step_made_possible_is_not(script):
    assert refusal(*script) is None


def test_nodes_are_named_as_in_the_file(tmp_path):
    path = tmp_path / "links"
    path.write_text("paris london\nlondon oslo\n")
    topology = parse_topology(f"file:{path}", 0)
    with pytest.raises(UsageError, match="paris and oslo are not linked then; paris is linked to"):
        parse_script(["1 cut paris-oslo"], topology, start_s=0.0, length_s=5.0)
