"""`hansa simulate`: output, errors, replay of seeds."""

import json
import re
import shlex
from dataclasses import fields, replace

import pytest

from hansa.cli import simulate
from hansa.cli.main import main
from hansa.simulator import request, seed_runner
from hansa.simulator.options import FaultCounts
from hansa.simulator.result import SimulationResult
from hansa.simulator.run import simulate as simulate_options
from hansa.simulator.scenarios.catalogue import SCENARIOS, ScenarioResult
from hansa.simulator.scenarios.sampling import random_options
from hansa.simulator.seed_runner import SeedTally


def run(capsys, *given):
    code = main(["simulate", *given])
    out, err = capsys.readouterr()
    return code, out, err


# ---------------------------------------------------------------- what it prints


def test_list_names_every_scenario_with_its_claim(capsys):
    code, out, _ = run(capsys, "--list")
    assert code == 0
    for scenario in SCENARIOS.values():
        assert f" {scenario.name} " in out


def test_scenario_prints_claims_and_measurements_with_the_seed(capsys):
    code, out, err = run(capsys, "--scenario", "spohn-2020", "--seed", "2")
    assert (code, err) == (0, "")
    assert out.startswith("spohn-2020: six brokers, two groups, redundancy 2\n")
    assert "0:{1} 2:{0,3} 3:{1} 4:{1} 5:{3,4}   0:{1} 2:{0,3} 3:{1} 4:{1} 5:{3,4}   ✓" in out
    assert "all promises kept\n" in out
    assert out.endswith("seed 2, replay: hansa simulate --scenario spohn-2020 --seed 2\n")


def test_notes_are_printed_with_a_scenario(capsys):
    _, out, _ = run(capsys, "--scenario", "spohn-2021")
    assert "Calibrated: 5.39 ms per hop and 13.22 ms for both ends" in " ".join(out.split())


def test_topology_is_sufficient(capsys):
    code, out, err = run(capsys, "--topology", "grid:3x3")
    assert (code, err) == (0, "")
    assert out.startswith("grid:3x3: 9 nodes, 12 links, seed 1; ")
    assert out.endswith("seed 1, replay: hansa simulate --topology grid:3x3 --seed 1\n")


def test_no_argument_runs_a_ring(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    assert out.startswith("ring:3: 3 nodes, 3 links, seed 1; ")


def test_json_is_the_result_and_the_scenario(capsys):
    code, out, err = run(capsys, "--scenario", "ring-3", "--json")
    values = json.loads(out)
    more = {"scenario", "preset", "claims", "replay"}
    expected = {field.name for field in fields(SimulationResult)} - {"wall_s"} | more
    assert (code, err, set(values)) == (0, "", expected)
    assert (values["scenario"], values["seed"], values["nodes"]) == ("ring-3", 1, 3)
    assert (values["topology"], values["preset"]) == ("ring:3", "default")
    assert values["replay"] == "hansa simulate --scenario ring-3 --seed 1"
    assert values["claims"][0] == {
        "what": "core after the crash of 1",
        "claimed": "2",
        "ours": "2",
        "holds": True,
    }


def test_json_of_a_topology_has_no_scenario(capsys):
    _, out, _ = run(capsys, "--json", "--seed", "9")
    values = json.loads(out)
    assert (values["scenario"], values["seed"]) == (None, 9)
    assert (values["topology"], values["preset"], values["claims"]) == ("ring:3", "default", [])


def test_random_scenario_is_replayable(capsys):
    code, out, _ = run(capsys, "--scenario", "random", "--seed", "12", "--json")
    values = json.loads(out)
    drawn = random_options(12)
    assert (code, values["topology"], values["preset"]) == (0, drawn.topology.name, None)
    assert values["fingerprint"] == simulate_options(drawn).fingerprint
    assert values["replay"] == "hansa simulate --scenario random --seed 12"


def test_random_scenario_accepts_a_strategy(capsys):
    given = ("--scenario", "random", "--seed", "12", "--strategy", "paths")
    code, out, _ = run(capsys, *given)
    assert code == 0
    assert "strategy paths" in out
    assert out.endswith("replay: hansa simulate --scenario random --strategy paths --seed 12\n")


def test_random_run_prints_its_topology(capsys):
    code, out, _ = run(capsys, "--scenario", "random", "--seed", "12")
    assert code == 0
    assert f"{random_options(12).topology.name}: " in out
    assert " faults " in out


def test_replay_command_uses_the_launcher(capsys, monkeypatch):
    monkeypatch.setenv("HANSA_LAUNCHER", "./my run")
    _, out, _ = run(capsys, "--topology", "line:2")
    assert out.startswith("line:2: 2 nodes, 1 link, seed 1; ")
    assert out.endswith("replay: './my run' hansa simulate --topology line:2 --seed 1\n")
    _, _, err = run(capsys, "--colour")
    assert err.endswith("see `'./my run' hansa simulate --help`\n")


def test_same_arguments_print_the_same_json(capsys):
    given = ("--topology", "random:12,3", "--faults", "crashes=2,cuts=1", "--json")
    assert run(capsys, *given) == run(capsys, *given)
    assert run(capsys, *given)[1] != run(capsys, *given, "--seed", "2")[1]


def test_clients_are_at_the_requested_nodes(capsys):
    _, out, _ = run(
        capsys,
        *("--topology", "line:4", "--subscribe", "3:a/#", "--subscribe", "1:a/b"),
        *("--publish", "0:a/b", "--publish", "0:c", "--publications", "4", "--json"),
    )
    values = json.loads(out)
    assert (values["publications"], values["expected"], values["delivered"]) == (8, 8, 8)
    assert set(values["delay_ms_by_node"]) == {"1", "3"}
    assert values["delay_ms_by_node"]["3"]["mean"] == pytest.approx(3.2)


def test_nodes_of_a_file_have_names(tmp_path, capsys):
    path = tmp_path / "links"
    path.write_text("paris london\nlondon oslo\n")
    code, out, _ = run(
        capsys,
        *("--topology", f"file:{path}", "--subscribe", "oslo:a", "--subscribe", "london:a"),
        *("--publish", "paris:a", "--at", "2 cut oslo-london", "--at", "9 restart oslo"),
    )
    assert code == 0
    assert " cut oslo-london " in out
    assert " restart oslo " in out
    assert " oslo " in out
    assert " london " in out


def test_disconnected_topology_causes_a_warning(tmp_path, capsys):
    path = tmp_path / "links"
    path.write_text("0-1\n2-3\n")
    code, _, err = run(capsys, "--topology", f"file:{path}")
    assert code == 0
    assert err == f"hansa: file:{path} consists of 2 parts that are not connected\n"


def test_recovery_from_scripted_faults_is_measured(capsys):
    code, out, _ = run(
        capsys, "--topology", "grid:3x3", "--at", "2 crash 4", "--at", "6 restart 4", "--json"
    )
    values = json.loads(out)
    assert code == 0
    found = [record["after"] for record in values["converged_s"]]
    assert found == ["start", "crash 4", "restart 4"]
    assert values["publications"] == 10 + 9


@pytest.mark.parametrize(("qos", "lost"), [(0, 2), (2, 0)])
def test_guaranteed_publications_reach_a_part_after_a_cut(qos, lost, capsys):
    """The publications at 2.5 s and 3.75 s are made while the only path is cut."""
    cut = ("--at", "2 cut 1-2", "--at", "4 restore 1-2", "--at", "4.5 publish 0 plant/x")
    clients = ("--subscribe", "2:plant/#", "--publish", "0:plant/temp", "--publications", "8")
    code, out, _ = run(capsys, "--topology", "line:3", *clients, *cut, "--qos", str(qos), "--json")
    values = json.loads(out)
    assert code == 0
    assert (values["lost"], values["duplicates_delivered"]) == (lost, 0)


def test_help_explains_every_fault():
    explained = simulate.make_parser().format_help()
    kinds = {field.name.replace("_", "-") for field in fields(FaultCounts)} - {"outage-s"}
    assert [kind for kind in kinds if kind not in explained] == []


def test_disturbances_are_listed(capsys):
    _, out, _ = run(capsys, "--topology", "ring:4", "--at", "2 cut 0-1", "--at", "2 cut 2-3")
    assert " cut 0-1,2-3 " in out


def test_fault_before_recovery_from_the_previous_one_is_marked(capsys):
    _, out, _ = run(capsys, "--at", "2 power-off 0", "--at", "2.5 restart 0")
    assert re.search(r"^ *power-off 0 +the next fault came first *$", out, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "step",
    [
        *("1 restart 4 without state", "1 restart-broker 4", "1 restart-broker 4 2 s"),
        *("1 clone 4 near 0", "1 silence 4>5", "1 flap 4-5 3 Hz 2.5 s"),
    ],
)
def test_every_fault_can_be_scripted(step, capsys):
    code, out, _ = run(capsys, "--topology", "grid:3x3", "--at", step, "--json")
    assert code == 0
    assert step.partition(" ")[2] in [record["after"] for record in json.loads(out)["converged_s"]]


def test_transcript_contains_events_and_actions(tmp_path, capsys):
    path = tmp_path / "story"
    code, _, _ = run(capsys, "--scenario", "ring-3", "--transcript", str(path))
    text = path.read_text()
    assert code == 0
    assert "CrashAgent(node=1)" in text
    assert "CoreElected(group='plant/#', core=2)" in text


@pytest.mark.parametrize("preset", ["default", "machado"])
@pytest.mark.parametrize("outside", ["one", "all", "random"])
def test_scenario_accepts_preset_and_forwarding(preset, outside, capsys):
    code, _, _ = run(
        capsys,
        "--scenario",
        "spohn-2020",
        "--preset",
        preset,
        "--non-member-forwarding",
        outside,
        "--json",
    )
    assert code == 0


def test_settings_of_a_topology(capsys):
    code, out, _ = run(
        capsys,
        *("--topology", "grid:3x3", "--redundancy", "1", "--metric", "rtt", "--management"),
        *("capacity", "--group-depth", "1", "--delay", "5", "--jitter", "1", "--json"),
    )
    assert code == 0
    assert json.loads(out)["delay_ms"]["mean"] > 5


def test_datagram_links(capsys):
    code, out, _ = run(
        capsys, "--loss", "0.05", "--duplicate", "0.05", "--reorder", "0.05", "--json"
    )
    assert code == 0
    assert "FrameAck" in json.loads(out)["control_frames"]


# ---------------------------------------------------------------- many seeds


def test_many_seeds_on_all_cores(capsys):
    code, out, err = run(capsys, "--scenario", "ring-3", "--runs", "3", "--seed", "5")
    assert (code, err) == (0, "")
    assert out == "seeds 5 to 7: 3 runs kept all promises\n"


def test_many_seeds_as_json(capsys):
    code, out, _ = run(capsys, "--runs", "2", "--json")
    assert code == 0
    assert json.loads(out) == {
        "scenario": None,
        "seed": 1,
        "runs": 2,
        "passed": 2,
        "failed": None,
    }


@pytest.fixture
def failing(monkeypatch):
    """Every run of a scenario or a topology breaks a promise."""
    run_request = request.run_request

    def broken(*arguments):
        result = run_request(*arguments)
        texts = tuple(f"no loop: text {number}" for number in range(12))
        return ScenarioResult(replace(result.result, violations=texts), result.rows)

    monkeypatch.setattr(request, "run_request", broken)
    monkeypatch.setattr(seed_runner, "find_first_failure", _run_first_seed)


def _run_first_seed(run_seed, seeds, on_passed):
    """Stands in for `find_first_failure`, in this process."""
    return SeedTally(0, run_seed(seeds[0]), None)


def test_broken_promise_is_exit_code_1(failing, capsys):
    code, out, _ = run(capsys)
    assert code == 1
    assert "12 promises broken\n  no loop: text 0\n" in out
    assert "  … 2 more; --json has all\n" in out


def test_first_failing_seed_is_printed_as_a_command(failing, capsys):
    given = ("--topology", "ring:4", "--subscribe", "1:plant/#", "--runs", "9", "--seed=4")
    code, out, err = run(capsys, *given)
    assert code == 1
    assert "12 promises broken" in out
    command = "hansa simulate --topology ring:4 --subscribe '1:plant/#' --seed 4"
    assert err == f"hansa: seed 4 breaks a promise; replay: {command}\n"
    assert main(shlex.split(command)[1:]) == 1


def test_failing_run_is_in_the_json(failing, capsys):
    code, out, _ = run(capsys, "--runs", "9", "--json")
    values = json.loads(out)
    assert (code, values["passed"], values["failed"]["seed"]) == (1, 0, 1)
    assert values["failed"]["replay"] == "hansa simulate --seed 1"


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("--scenario spohn2020",
         "there is no scenario 'spohn2020'; did you mean spohn-2020 or spohn-2021?"),
        ("--scenario spohn2020 --runs 5",
         "there is no scenario 'spohn2020'; did you mean spohn-2020 or spohn-2021?"),
        ("--topology ring:2", "topology 'ring:2': a ring needs at least 3 nodes, as in ring:3"),
        ("--topology ring:2 --runs 5",
         "topology 'ring:2': a ring needs at least 3 nodes, as in ring:3"),
        ("--scenario ring-3 --topology ring:3",
         "argument --topology: not allowed with argument --scenario; see `hansa simulate --help`"),
        ("--redundancy -1", "argument --redundancy: -1 must be from 1 to 16 parents; see"
         " `hansa simulate --help`"),
        ("--redundancy two", "argument --redundancy: 'two' is not a whole number of parents; see"
         " `hansa simulate --help`"),
        ("--delay -1",
         "argument --delay: -1 must be from 0 to 60000 milliseconds; see `hansa simulate --help`"),
        ("--duration 1e7", "argument --duration: 1e7 must be from 0 to 1000000 seconds; see"
         " `hansa simulate --help`"),
        ("--delay fast", "argument --delay: 'fast' is not a number of milliseconds; see"
         " `hansa simulate --help`"),
        ("--loss 1", "argument --loss: 1 must be from 0 to 0.9; see `hansa simulate --help`"),
        ("--loss much", "argument --loss: 'much' is not a number; see `hansa simulate --help`"),
        ("--seed -1", "argument --seed: -1 must be from 0 to 9223372036854775807; see"
         " `hansa simulate --help`"),
        ("--seed x",
         "argument --seed: 'x' is not a whole number; see `hansa simulate --help`"),
        ("--seed 1_0",
         "argument --seed: '1_0' is not a whole number; see `hansa simulate --help`"),
        ("--seed 9223372036854775807 --runs 2",
         "2 runs from seed 9223372036854775807 exceed the largest seed, 9223372036854775807; give"
         " a smaller --seed"),
        ("--topology ", "topology '': write one of ring:3 line:5 star:8 grid:3x3 tree:15 full:6"
         " random:50,4 geometric:100,0.15 file:links.json"),
        ("--scenario ", "there is no scenario ''; there are spohn-2020, spohn-2021, machado-6,"
         " machado-15, machado-25, bevilaqua-9, bevilaqua-12, ring-3, overlap,"
         " changing-filters, passing-groups, late-joiners, split-minute, part-kill, pause-kill,"
         " swizzle-clog, only-copy,"
         " crash-after-capture, rolled-back, stale-repair-request, retention, lease-ended,"
         " session-lost, random, byzantine"),
        ("--subscribe ", "argument --subscribe: '' must be a node, a colon and a topic or filter,"
         " as in 3:plant/temp; see `hansa simulate --help`"),
        ("--filter ", "topic filter '': must not be empty"),
        ("--faults ", "faults '': there is no ''; there are cuts, silent-cuts, one-way-cuts,"
         " partitions, flaps, crashes, power-offs, freezes, stalls, disk-failures,"
         " clock-jumps, refusals, lossy-restarts, broker-restarts,"
         " link-changes, clones, roll-backs, byzantine"),
        ("--at ", "step '': write seconds and an action, as in '2 crash 3'"),
        ("--transcript ", "argument --transcript: name a file; see `hansa simulate --help`"),
        ("--scenario random --preset machado",
         "a scenario sets --preset itself; omit it, or use --topology"),
        ("--runs 0",
         "argument --runs: 0 must be from 1 to 1000000 runs; see `hansa simulate --help`"),
        ("--preset lan", "argument --preset: there is no 'lan'; there are default, machado; see"
         " `hansa simulate --help`"),
        ("--non-member-forwarding none", "argument --non-member-forwarding: there is no 'none';"
         " there are one, all, random; see `hansa simulate --help`"),
        ("--subscribe 1", "argument --subscribe: '1' must be a node, a colon and a topic or filter,"
         " as in 3:plant/temp; see `hansa simulate --help`"),
        ("--subscribe 1:a/#/b", "topic filter 'a/#/b': '#' must be the last level"),
        ("--filter a/#/b", "topic filter 'a/#/b': '#' must be the last level"),
        ("--publish 1:a/#", "topic name 'a/#': '+' and '#' are for filters only"),
        ("--subscribe 7:a", "there is no node '7' in ring:3; its nodes are 0 to 2"),
        ("--publish x:a", "there is no node 'x' in ring:3; its nodes are 0 to 2"),
        ("--faults crashs=1", "faults 'crashs=1': there is no 'crashs'; did you mean 'crashes'?"),
        ("--faults crashes=x", "faults 'crashes=x': 'x' is not a count; write crashes=2"),
        ("--faults crashes --duration 0",
         "faults need time; give --duration more than 0 seconds"),
        ("--faults stalls",
         "disk faults matter only at QoS 1 and 2; give --qos 1 or 2"),
        ("--qos 3", "argument --qos: 3 must be from 0 to 2; see `hansa simulate --help`"),
        ("--at crash", "step 'crash': write seconds and an action, as in '2 crash 3'"),
        ("--scenario ring-3 --redundancy 3",
         "a scenario sets --redundancy itself; omit it, or use --topology"),
        ("--scenario ring-3 --strategy paths",
         "a scenario sets --strategy itself; omit it, or use --topology"),
        ("--scenario ring-3 --group-depth 1",
         "a scenario sets --group-depth itself; omit it, or use --topology"),
        ("--runs 2 --transcript x",
         "--transcript needs a single run; omit --runs or --transcript"),
        ("--transcript /nowhere/x", "cannot write /nowhere/x: no such file or directory"),
        ("--colour", "unrecognized arguments: --colour; see `hansa simulate --help`"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(given, problem, capsys):
    assert run(capsys, *given.split(" ")) == (2, "", f"hansa: {problem}\n")


def test_step_after_the_end_is_refused(capsys):
    problem = "step '20 crash 1' comes after the run; give --duration 20 or more"
    assert run(capsys, "--at", "20 crash 1") == (2, "", f"hansa: {problem}\n")
