"""Sweep files: the simulations they describe, and one sentence for every mistake."""

import pytest

from hansa.errors import UsageError
from hansa.experiments.sweep import CASES_MAX, SweepCase, make_sweep, read_sweep

OPTIONS = ("topology", "strategy", "faults", "redundancy", "loss", "scenario")
NO_SEEDS = (
    "seeds must be a number of seeds, such as 20, a list, such as [3, 7], or a range, such as"
    ' "0-1999"'
)


def test_lists_are_swept_and_other_values_are_fixed():
    sweep = make_sweep(
        {"topology": "ring:3", "redundancy": [1, 2], "loss": 0.1, "seeds": 2, "name": "few"},
        OPTIONS,
    )
    assert (sweep.name, sweep.swept) == ("few", ("redundancy",))
    common = [("topology", "ring:3")], [("loss", "0.1")]
    assert sweep.cases == tuple(
        SweepCase((*common[0], ("redundancy", redundancy), *common[1]), seed)
        for redundancy in ("1", "2")
        for seed in (1, 2)
    )


def test_case_is_a_command_line():
    (case,) = make_sweep({"topology": "ring:3", "faults": "cuts=1", "seeds": [7]}, OPTIONS).cases
    assert case.arguments == ["--topology", "ring:3", "--faults", "cuts=1", "--seed", "7"]


def test_range_of_seeds_is_a_campaign():
    values = {"scenario": "random", "strategy": ["mesh", "paths"], "seeds": "5-6"}
    assert [case.arguments for case in make_sweep(values, OPTIONS).cases] == [
        ["--scenario", "random", "--strategy", strategy, "--seed", seed]
        for strategy in ("mesh", "paths")
        for seed in ("5", "6")
    ]


def test_sizes_are_inserted_into_topologies_without_repeated_combinations():
    sweep = make_sweep({"topology": ["ring:{size}", "grid:3x3"], "size": [4, 5]}, OPTIONS)
    assert [dict(case.parameters)["topology"] for case in sweep.cases] == [
        "ring:4",
        "ring:5",
        "grid:3x3",
    ]
    assert sweep.swept == ("topology",)


def test_empty_string_omits_the_option():
    sweep = make_sweep({"faults": ["", "cuts=1"]}, OPTIONS)
    assert [case.parameters for case in sweep.cases] == [(), (("faults", "cuts=1"),)]
    assert sweep.swept == ("faults",)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"topologie": "ring:3"}, "there is no option 'topologie'; did you mean 'topology'?"),
        ({"xyz": 1}, "there is no option 'xyz'; see `hansa simulate --help`"),
        ({"strategy": []}, "strategy is an empty list: there is nothing to run"),
        ({"loss": [0.1, True]}, "loss = True is neither a string nor a number"),
        ({"loss": {"a": 1}}, "loss = {'a': 1} is neither a string nor a number"),
        (
            {"topology": "ring:{size}"},
            "a topology contains {size}; set it, for example size = [10, 20]",
        ),
        ({"size": [3]}, 'size is set, but no topology uses it: topology = "ring:{size}"'),
        ({"seeds": 0}, f"seeds = 0 must be from 1 to {CASES_MAX}"),
        ({"seeds": []}, NO_SEEDS),
        ({"seeds": True}, NO_SEEDS),
        ({"seeds": "9"}, "'9' is not a range of seeds; write FIRST-LAST, as in 0-1999"),
        (
            {"seeds": CASES_MAX, "redundancy": [1, 2]},
            f"these are {2 * CASES_MAX} simulations; a sweep has at most {CASES_MAX}",
        ),
    ],
)
def test_mistake_is_reported_in_one_sentence(values, problem):
    with pytest.raises(UsageError) as caught:
        make_sweep(values, OPTIONS)
    assert str(caught.value) == problem


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "few.toml"
    with pytest.raises(UsageError, match="cannot read the sweep file .*few.toml: No such file"):
        read_sweep(path, OPTIONS)
    path.write_text("topology = [")
    with pytest.raises(UsageError, match="few.toml is not valid TOML: "):
        read_sweep(path, OPTIONS)
    path.write_text("size = 3")
    with pytest.raises(UsageError, match="few.toml: size is set, but no topology uses it"):
        read_sweep(path, OPTIONS)
    path.write_text('topology = "ring:3"')
    assert read_sweep(path, OPTIONS).name == "few"
