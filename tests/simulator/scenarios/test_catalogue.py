"""The papers' experiments hold with several seeds, and their checks can fail."""

from dataclasses import replace

import pytest

from hansa.errors import UsageError
from hansa.protocol.settings import PRESETS, ProtocolSettings
from hansa.simulator.options import DiskOptions, LinkOptions, SimulationOptions
from hansa.simulator.papers import bevilaqua, machado, spohn
from hansa.simulator.result import ConvergenceRecord
from hansa.simulator.run import Simulation, simulate
from hansa.simulator.scenarios import deliveries, examples
from hansa.simulator.scenarios.catalogue import SCENARIOS, find_scenario, run_scenario
from hansa.simulator.scenarios.sampling import random_options
from hansa.simulator.scenarios.scenario import (
    ClaimRow,
    FinalSnapshot,
    Recovery,
    SimulationScenario,
    equality_row,
    format_duration,
    format_links,
    format_nodes,
    format_parents,
    recoveries,
    settle_pause_s,
)
from hansa.simulator.topologies import (
    connected_components,
    hop_distances,
    neighbours_of,
    parse_topology,
)

QUICK = (
    "spohn-2020",
    "spohn-2021",
    "machado-6",
    "bevilaqua-9",
    "bevilaqua-12",
    "ring-3",
    "overlap",
    "random",
    "byzantine",
)
TROUBLE = tuple(scenario.name for scenario in deliveries.SCENARIOS)
SLOW = ("machado-15", "machado-25")


def broken(played):
    return [row for row in played.rows if row.holds is False]


def test_all_scenarios_are_tested():
    assert sorted(SCENARIOS) == sorted(QUICK + SLOW + TROUBLE)


def assert_holds(name, settings, seed):
    played = run_scenario(find_scenario(name), settings, seed)
    assert (broken(played), played.result.violations) == ([], ())


@pytest.mark.parametrize("name", (*QUICK, *TROUBLE, "machado-15"))
def test_a_scenario_holds(name):
    assert_holds(name, ProtocolSettings(), seed=1)


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 4])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_holds_with_other_seeds(name, seed):
    assert_holds(name, ProtocolSettings(), seed)


SHORT = ("spohn-2020", "ring-3")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in SHORT else pytest.mark.long) for n in QUICK + SLOW],
)
def test_a_scenario_holds_with_the_timers_of_machado(name):
    assert_holds(name, PRESETS["machado"], seed=1)


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("retention", {"disk": DiskOptions(journal_max=15)}, "delivered"),
        ("session-lost", {"schedule": ()}, "delivered"),
        ("part-kill", {"schedule": ()}, "guaranteed deliveries, made"),
        ("split-minute", {"schedule": ()}, "repaired from the origins' journals"),
        ("passing-groups", {"links": LinkOptions()}, "repaired from the origins' journals"),
    ],
)
def test_changed_outcome_fails_the_scenario(name, options, what):
    made = replace(find_scenario(name).make_options(ProtocolSettings(), 1), **options)
    simulation = Simulation(made)
    result = simulation.run()
    rows = find_scenario(name).evaluate(FinalSnapshot(tuple(simulation.statuses()), made, result))
    assert what in [row.what for row in rows if row.holds is False]


def test_scenario_is_deterministic():
    first, second = (
        run_scenario(find_scenario("machado-6"), ProtocolSettings(), seed=4) for _ in range(2)
    )
    assert first == second
    assert first.result.to_json() == second.result.to_json()


# ---------------------------------------------------------------- what the papers say


def test_spohn_2020_matches_the_figures():
    rows = {
        row.what: row.ours
        for row in run_scenario(find_scenario("spohn-2020"), ProtocolSettings(), 1).rows
    }
    assert rows["core of the management group"] == "0"
    assert rows["links outside its mesh"] == "3-4"
    assert rows["parents towards it"] == "0:{1} 2:{0,3} 3:{1} 4:{1} 5:{3,4}"
    assert rows["members of group 2"] == "1,3,4,5"
    assert rows["deliveries of 2 publications"] == "4 of 4, 0 twice"


def test_spohn_2021_calibration():
    assert spohn.BOTH_ENDS_MS + 4 * spohn.HOP_MS == pytest.approx(34.77)
    assert spohn.BOTH_ENDS_MS + 1 * spohn.HOP_MS == pytest.approx(18.61)


def test_machado_timers_match_the_times_of_the_thesis():
    played = run_scenario(find_scenario("machado-6"), PRESETS["machado"], seed=1)
    crash = next(r for r in recoveries(played.result) if r.after == "crash 3")
    assert crash.converged_s is not None
    assert 60 < crash.converged_s < 180


@pytest.mark.parametrize(
    ("preset", "row"),
    [
        (
            "default",
            ClaimRow("converged after crash 3", "about 1 and 2 min; our limit: 500 ms", "", True),
        ),
        ("machado", ClaimRow("converged after crash 3", "about 1 and 2 min", "")),
    ],
)
def test_only_our_own_limit_is_evaluated_for_machado(preset, row):
    rows = run_scenario(find_scenario("machado-6"), PRESETS[preset], seed=1).rows
    assert row in [replace(found, ours="") for found in rows]


def test_random_scenario_describes_its_draw():
    played = run_scenario(find_scenario("random"), PRESETS["machado"], seed=7)
    assert played.result == simulate(random_options(7))
    assert [row.what for row in played.rows] == ["settings", "links", "clients", "faults"]
    assert {row.holds for row in played.rows} == {None}


def test_machado_graphs_have_the_sizes_of_the_thesis():
    for nodes_, topology in ((15, machado.FIFTEEN), (25, machado.TWENTY_FIVE)):
        assert topology.nodes == nodes_
        assert len(connected_components(topology)) == 1
    density = [len(t.links) / t.nodes for t in (machado.FIFTEEN, machado.TWENTY_FIVE)]
    assert density[1] > density[0]


def test_bevilaqua_nine_matches_the_text():
    degrees = [len(near) for near in neighbours_of(bevilaqua.NINE)]
    assert neighbours_of(bevilaqua.NINE)[8] == (0, 7)
    assert degrees.index(max(degrees)) == 3
    assert degrees.count(max(degrees)) == 1
    assert min(degrees) == degrees[8]
    assert degrees.count(min(degrees)) == 1


def test_bevilaqua_twelve_matches_the_text():
    assert max(len(near) for near in neighbours_of(bevilaqua.TWELVE)) == 5
    assert [hop_distances(bevilaqua.TWELVE, 11)[node] for node in (0, 5)] == [1, 3]


# ---------------------------------------------------------------- what is checked


@pytest.mark.parametrize(
    ("scenario", "change", "what"),
    [
        ("spohn-2020", {"redundancy": 1}, "parents towards it"),
        ("spohn-2020", {"redundancy": 1}, "links outside its mesh"),
        ("spohn-2021", {"redundancy": 1}, "members of the mesh"),
    ],
)
def test_changed_setting_fails_the_scenario(scenario, change, what):
    made = find_scenario(scenario).make_options(ProtocolSettings(), 1)
    options = replace(made, protocol=replace(made.protocol, **change))
    simulation = Simulation(options)
    result = simulation.run()
    rows = find_scenario(scenario).evaluate(
        FinalSnapshot(tuple(simulation.statuses()), options, result)
    )
    assert what in [row.what for row in rows if row.holds is False]


def test_slow_timers_exceed_the_limit_of_fast_ones():
    slow = replace(ProtocolSettings(), takeover_delay=2.0, announcement_interval_min=1.0)
    played = run_scenario(find_scenario("machado-6"), slow, seed=1)
    assert any("crash" in row.what for row in broken(played))


def test_failed_row_is_a_violation():
    scenario = SimulationScenario(
        "never",
        "a ring",
        "a claim",
        lambda settings, seed: SimulationOptions(parse_topology("ring:3", 0), settings, seed),
        lambda final: [
            equality_row("nodes", "4", str(final.result.nodes)),
            ClaimRow("more", "", "x"),
        ],
    )
    result = run_scenario(scenario, ProtocolSettings(), seed=5).result
    assert result.violations == ("never: nodes should be 4, not 3 (seed 5)",)
    assert not result.ok


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("spohn2020", "there is no scenario 'spohn2020'; did you mean spohn-2020 or spohn-2021?"),
        ("ring3", "there is no scenario 'ring3'; did you mean ring-3?"),
        ("xyz", f"there is no scenario 'xyz'; there are {', '.join(SCENARIOS)}"),
    ],
)
def test_unknown_scenario_is_refused_with_suggestions(name, problem):
    with pytest.raises(UsageError) as refusal:
        find_scenario(name)
    assert str(refusal.value) == problem


# ---------------------------------------------------------------- reading a run


def test_simultaneous_faults_are_one_recovery():
    records = (
        ConvergenceRecord("start", 0.0, 0.1),
        ConvergenceRecord("crash 1", 5.0, None),
        ConvergenceRecord("crash 3", 5.0, 0.2),
        ConvergenceRecord("restart 1", 9.0, None),
        ConvergenceRecord("restart 3", 9.0, None),
        ConvergenceRecord("cut 0-1", 12.0, None),
        ConvergenceRecord("crash 2", 12.0, 0.3),
        ConvergenceRecord("freeze 1 2 s", 14.0, 0.4),
        ConvergenceRecord("freeze 2 3 s", 14.0, 0.4),
    )
    result = replace(simulate(SimulationOptions(parse_topology("line:1", 0))), converged_s=records)
    assert recoveries(result) == [
        Recovery("start", 0.1),
        Recovery("crash 1,3", 0.2),
        Recovery("restart 1,3", None),
        Recovery("cut 0-1, crash 2", 0.3),
        Recovery("freeze 1 2 s, freeze 2 3 s", 0.4, last=True),
    ]


def test_missing_recovery_time_is_explained():
    assert Recovery("crash 1", 0.25).duration_text == "250 ms"
    assert Recovery("crash 1", None).duration_text == "the next fault came first"
    assert Recovery("crash 1", None, last=True).duration_text == "not before the end"


def test_pause_depends_on_the_timers():
    fast, slow = (
        settle_pause_s(examples.RING, PRESETS[name], LinkOptions())
        for name in ("default", "machado")
    )
    assert fast < 30 < 120 < slow


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0123, "12 ms"),
        (1.25, "1.2 s"),
        (99.0, "99.0 s"),
        (150, "2.5 min"),
    ],
)
def test_format_of_durations(seconds, text):
    assert format_duration(seconds) == text


def test_format_of_nodes_links_and_parents():
    assert format_nodes({3, -1, 0}) == "none,0,3"
    assert format_links({(3, 4), (0, 1)}) == "0-1 3-4"
    assert format_parents({5: (4, 3), 2: ()}) == "2:{} 5:{3,4}"
