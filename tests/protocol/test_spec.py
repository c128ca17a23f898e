"""The index of docs/protocol.md: every rule has a test, every test a rule, in the same order.

    section                          file
    1 names and bounds               test_spec_names.py
    2 links and neighbours           test_spec_links.py
    3 the database and the map       test_spec_map.py
    4 cores and routes to them       test_spec_cores.py
    5 meshes and forwarding          test_spec_meshes.py
    6 interest and publications      test_spec_interest.py
    7 guaranteed delivery            test_spec_delivery.py
    8 strategies                     test_spec_strategies.py
    9 retained messages              test_spec_retained.py
    10 shared subscriptions          test_spec_sharing.py
    11 proof of the source           test_spec_proof.py
    12 signed records                test_spec_authentication.py

A test is named after its rule (`test_4_5_…`) and its docstring begins with the number. Three of
them cover faults of earlier federators: an announcement that costs many times 2·l frames and forms
no redundancy (4.4), a hop that is counted twice (4.3), and messages of a restarted node that are
dropped as duplicates (5.6).
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SPEC = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
RULES = re.findall(r"^- \*\*(\d+\.\d+)\*\* ", SPEC, flags=re.MULTILINE)
SECTIONS = ["names", "links", "map", "cores", "meshes", "interest", "delivery", "strategies"]
SECTIONS += ["retained", "sharing", "proof", "authentication"]


def proofs(section: str) -> list[ast.FunctionDef]:
    source = Path(__file__).with_name(f"test_spec_{section}.py").read_text(encoding="utf-8")
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return [function for function in functions if function.name.startswith("test_")]


@pytest.mark.parametrize(("number", "section"), [*enumerate(SECTIONS, start=1)])
def test_every_rule_has_a_test_and_every_test_a_rule(number, section):
    cited = [test.name.removeprefix("test_").split("_")[:2] for test in proofs(section)]
    rules = [rule for rule in RULES if rule.startswith(f"{number}.")]
    assert list(dict.fromkeys(".".join(pair) for pair in cited)) == rules


@pytest.mark.parametrize("section", SECTIONS)
def test_every_test_opens_with_the_rule_that_it_is_named_after(section):
    for test in proofs(section):
        rule = (ast.get_docstring(test) or "").split(" ")[0]
        assert test.name.startswith(f"test_{rule.replace('.', '_')}_")


def test_rules_are_numbered_without_gaps_in_sections_that_have_a_file_each():
    numbers = [tuple(map(int, rule.split("."))) for rule in RULES]
    counts = [sum(section == n for section, _ in numbers) for n in range(1, len(SECTIONS) + 1)]
    assert numbers == [
        (section, rule)
        for section, count in enumerate(counts, start=1)
        for rule in range(1, count + 1)
    ]


def test_every_cited_rule_exists():
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.md")]
    cited = {
        number: file.name
        for file in files
        for number in re.findall(r"\brule (\d+\.\d+)", file.read_text(encoding="utf-8"))
    }
    assert {number: file for number, file in cited.items() if number not in RULES} == {}
