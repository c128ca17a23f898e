"""Mutants: every kind of change, exactly one per mutant."""

import ast
import gc
from types import FunctionType

import pytest

from hansa.delivery import quota_backoff
from tests.mutation import __main__ as main_module
from tests.mutation.__main__ import all_mutants, code_of, find_functions, load_equivalent
from tests.mutation.mutants import make_mutants

SOURCE = """
def grow(self, by: int) -> None:
    assert by > 0
    if self.size < 5 and by:
        self.size += by
"""


def test_mutants_of_a_function():
    mutants = make_mutants(SOURCE)
    test = "self.size < 5 and by"
    assert [mutant.name for mutant in mutants] == [
        "grow: return early: body -> pass",
        f"grow: condition: {test} -> not ({test})",
        f"grow: and/or: {test} -> self.size < 5 or by",
        f"grow: operand: {test} -> by",
        f"grow: operand: {test} -> self.size < 5",
        "grow: boundary: self.size < 5 -> self.size <= 5",
        "grow: number: 5 -> 6",
        "grow: number: 5 -> 4",
        "grow: arithmetic: self.size += by -> self.size -= by",
        "grow: statement: self.size += by -> pass",
    ]
    original = ast.unparse(ast.parse(SOURCE))
    changed = [ast.unparse(mutant.make_tree()) for mutant in mutants]
    assert len({original, *changed}) == len(mutants) + 1


def test_mutant_of_a_function_names_the_outermost_one():
    source = """
LIMIT = 1
class Tree:
    size = 2
    def grow(self, by=3):
        def inner():
            return 4
        return inner
"""
    found = {mutant.name: mutant.function for mutant in make_mutants(source)}
    assert found == {
        ": number: 1 -> 2": "",
        ": number: 1 -> 0": "",
        "Tree: number: 2 -> 3": "",
        "Tree: number: 2 -> 1": "",
        "Tree.grow: number: 3 -> 4": "",
        "Tree.grow: number: 3 -> 2": "",
        "Tree.grow.inner: number: 4 -> 5": "Tree.grow",
        "Tree.grow.inner: number: 4 -> 3": "Tree.grow",
    }


def test_mutant_of_a_function_is_played_with_its_code():
    name = "hansa.delivery.quota_backoff: QuotaBackoff.__contains__: comparison: "
    (mutant,) = (each for each in all_mutants() if each.name.startswith(name))
    original = quota_backoff.QuotaBackoff.__contains__
    gc.unfreeze()  # a command that an earlier test of this process ran hides frozen functions
    assert find_functions()[str(mutant.path), mutant.function] is original
    changed = FunctionType(code_of(mutant), vars(quota_backoff))
    assert changed.__code__.co_names == original.__code__.co_names
    assert changed.__code__.co_code != original.__code__.co_code


def test_equivalent_mutants_exist_and_have_reasons():
    names = [each.name for each in all_mutants()]
    assert 0 < len(load_equivalent(names)) < len(names) / 10


@pytest.mark.parametrize("listed", ["a: b: one -> three", "a: c: *"])
def test_listed_mutant_that_does_not_exist_is_refused(monkeypatch, tmp_path, listed):
    path = tmp_path / "equivalent.toml"
    path.write_text(f'[[equivalent]]\nmutant = "{listed}"\nreason = "None."\n')
    monkeypatch.setattr(main_module, "EQUIVALENT", path)
    with pytest.raises(ValueError, match="no mutant"):
        load_equivalent(["a: b: one -> two"])


def test_listed_beginning_stands_for_all_mutants_with_it(monkeypatch, tmp_path):
    path = tmp_path / "equivalent.toml"
    path.write_text('[[equivalent]]\nmutant = "a: b: *"\nreason = "Both."\n')
    monkeypatch.setattr(main_module, "EQUIVALENT", path)
    assert load_equivalent(["a: b: 1", "a: c: 2", "a: b: 3"]) == {
        "a: b: 1": "Both.",
        "a: b: 3": "Both.",
    }
