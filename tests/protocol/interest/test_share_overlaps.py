from hansa.protocol.interest.share_overlaps import ShareOverlaps


def test_filter_overlaps_until_the_last_share_with_that_filter_is_gone():
    overlaps = ShareOverlaps()
    overlaps.add("a/b")
    overlaps.add("a/b")
    overlaps.remove("a/b")
    assert overlaps.overlaps("a/#")
    assert not overlaps.overlaps("b/#")
    overlaps.remove("a/b")
    assert not overlaps.overlaps("a/#")


def test_answers_that_a_share_does_not_change_are_kept():
    overlaps = ShareOverlaps()
    for name in ("a/#", "+/b", "c"):
        overlaps.overlaps(name)
    overlaps.add("a/x")
    assert overlaps.known == {"+/b": False, "c": False}
    overlaps.overlaps("a/#")
    overlaps.remove("a/x")
    assert overlaps.known == {"+/b": False, "c": False}
    overlaps.forget("c")
    assert overlaps.known == {"+/b": False}
