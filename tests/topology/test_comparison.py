from hansa.topology.comparison import Trial, compare


def test_the_planner_mends_everything_and_is_no_worse_with_the_same_number_of_links():
    paper, planner, measured = compare(Trial(nodes=20, federations=4, failures=5, failed=0.3))
    assert [paper.rule, planner.rule, measured.rule] == ["paper", "planner", "planner, measured"]
    assert planner.mended == measured.mended == 1.0
    assert paper.mended < 1.0
    assert planner.links <= paper.links
    assert measured.mean_ms < paper.mean_ms
    assert max(planner.degree_max, measured.degree_max) <= 5
