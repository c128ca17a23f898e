from hansa.topology.comparison import TopologyTrial, compare_rules


def test_planner_repairs_all_failures_with_the_same_number_of_links():
    paper, planner, measured = compare_rules(
        TopologyTrial(nodes=20, federations=4, failure_rounds=5, failed_ratio=0.3)
    )
    assert [paper.rule, planner.rule, measured.rule] == ["paper", "planner", "planner, measured"]
    assert planner.repaired_ratio == measured.repaired_ratio == 1.0
    assert paper.repaired_ratio < 1.0
    assert planner.links <= paper.links
    assert measured.mean_ms < paper.mean_ms
    assert max(planner.degree_max, measured.degree_max) <= 5
