"""The replicated database by example, and three of them that exchange records in any order."""

from itertools import chain, combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.protocol.contexts import plain

from hansa.protocol.membership.changes import FetchRequired, RecordChange, SetChange
from hansa.protocol.membership.database import (
    PART_BYTES,
    UPDATE_BYTES,
    Database,
    pack_updates,
)
from hansa.protocol.membership.records import (
    ClaimsRecord,
    InterestRecord,
    NodeRecord,
    Record,
    RecordKind,
)
from hansa.protocol.membership.rows import estimate_bytes, fingerprint
from hansa.protocol.model import LinkId, NodeId
from hansa.protocol.wire.frames import Summary, Update

A, B = NodeId(1), NodeId(2)
LEFT, RIGHT = LinkId(10), LinkId(11)
LINKS = (LEFT, RIGHT)

LONG = [f"{n:02}/{'x' * (PART_BYTES // 2 - 50)}" for n in range(5)]
"""Names of which two fit one part, so that five take three."""


def node_record(
    version: int,
    incarnation: int = 1,
    node: NodeId = A,
    born: int = 1,
    key: bytes = b"k",
    links: tuple[tuple[NodeId, int], ...] = ((B, 0),),
) -> NodeRecord:
    return NodeRecord(node, incarnation, version, born, key, "", (), 1.0, links)


def whole(*names: str, version: int = 1, incarnation: int = 1) -> InterestRecord:
    return InterestRecord(A, incarnation, version, version, names)


def delta(
    version: int, added: tuple[str, ...] = (), removed: tuple[str, ...] = (), incarnation: int = 1
) -> InterestRecord:
    return InterestRecord(A, incarnation, version, version - 1, added, removed)


def parts(*names: str, version: int = 1) -> list[InterestRecord]:
    """A set, one name in each part."""
    return [
        InterestRecord(A, 1, version, version, (name,), (), part, len(names))
        for part, name in enumerate(names)
    ]


def holding(*records: Record) -> Database:
    """A database with these records, already flooded."""
    database = Database(plain())
    for record in records:
        database.merge(record, None)
    database.drain_updates([])
    return database


def interest(database: Database, node: NodeId = A) -> list[str]:
    return list(database.names(RecordKind.INTEREST, node))


def flooded(database: Database) -> dict[LinkId, tuple[Record, ...]]:
    return {link: update.records for link, update in database.drain_updates(LINKS)}


# ---------------------------------------------------------------- reading


def test_empty_database_knows_nothing():
    database = Database(plain())
    assert (database.stamp(RecordKind.NODE, A), database.names(RecordKind.CLAIMS, A)) == (
        (0, 0),
        {},
    )
    assert (database.row_records((RecordKind.NODE, A)), database.digest) == ([], 0)
    assert (database.summary(), database.drain_updates(LINKS)) == (Summary(()), [])


def test_whole_row_is_returned():
    database = holding(node_record(3), delta(1, ("a", "b")), ClaimsRecord(A, 1, 1, 0, ("g",)))
    rows = [(kind, A) for kind in RecordKind]
    assert [database.row_records(row) for row in rows] == [
        [node_record(3)],
        [InterestRecord(A, 1, 1, 1, ("a", "b"))],
        [ClaimsRecord(A, 1, 1, 1, ("g",))],
    ]


def test_large_set_is_returned_in_parts():
    database = holding(whole(*LONG, version=7))
    assert database.row_records((RecordKind.INTEREST, A)) == [
        InterestRecord(A, 1, 7, 7, names, (), part, 3)
        for part, names in enumerate([tuple(LONG[:2]), tuple(LONG[2:4]), tuple(LONG[4:])])
    ]


def test_empty_set_is_a_row_too():
    database = holding(delta(1, ("a",)), delta(2, removed=("a",)))
    assert database.row_records((RecordKind.INTEREST, A)) == [whole(version=2)]


def test_summary_lists_all_stamps():
    database = holding(node_record(3), whole("a", version=2, incarnation=4))
    assert database.summary() == Summary(
        ((RecordKind.NODE, A, 1, 3), (RecordKind.INTEREST, A, 4, 2))
    )


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        ((), [node_record(3), whole("a", version=2)]),
        (
            ((RecordKind.NODE, A, 1, 2), (RecordKind.INTEREST, A, 0, 9)),
            [node_record(3), whole("a", version=2)],
        ),
        (((RecordKind.NODE, A, 1, 3),), [whole("a", version=2)]),
        (
            (
                (RecordKind.NODE, A, 2, 1),
                (RecordKind.INTEREST, A, 1, 2),
                (RecordKind.NODE, B, 1, 1),
            ),
            [],
        ),
    ],
)
def test_missing_rows_of_a_neighbour_are_found_by_its_summary(rows, missing):
    database = holding(node_record(3), whole("a", version=2))
    found = database.missing_from(Summary(rows))
    assert [record for row in found for record in row] == missing


@pytest.mark.parametrize(
    ("row", "lacks"),
    [
        ((RecordKind.NODE, A, 1, 3), False),
        ((RecordKind.NODE, A, 0, 9), False),
        ((RecordKind.NODE, A, 1, 4), True),
        ((RecordKind.NODE, A, 2, 1), True),
        ((RecordKind.INTEREST, A, 0, 0), True),
    ],
)
def test_newer_rows_of_a_neighbour_are_found_by_its_summary(row, lacks):
    assert holding(node_record(3)).is_behind(Summary((row,))) == lacks


# ---------------------------------------------------------------- node records


@pytest.mark.parametrize("newer", [node_record(3), node_record(1, incarnation=2)])
def test_newer_record_replaces_an_older_one(newer):
    database = holding(node_record(2))
    assert database.merge(newer, None) == RecordChange(newer)
    assert database.nodes == {A: newer}


@pytest.mark.parametrize("older", [node_record(2), node_record(1), node_record(9, incarnation=0)])
def test_older_record_or_a_copy_changes_nothing(older):
    database = holding(node_record(2))
    digest = database.digest
    assert database.merge(older, None) is None
    assert (database.nodes, database.digest) == ({A: node_record(2)}, digest)


def test_of_two_copies_with_one_stamp_the_one_that_started_first_is_kept():
    copies = [node_record(2, born=0), node_record(2, born=1)]
    one, other = holding(*copies), holding(*reversed(copies))
    assert one.nodes == other.nodes == {A: copies[0]}
    assert one.digest == other.digest


# ---------------------------------------------------------------- sets


def test_whole_set_replaces_another():
    database = holding(whole("a", "b"))
    change = SetChange(RecordKind.INTEREST, A, (1, 2), added=("c",), removed=("a",))
    assert database.merge(whole("b", "c", version=2), None) == change
    assert (interest(database), database.stamp(RecordKind.INTEREST, A)) == (["b", "c"], (1, 2))


def test_change_that_fits_is_applied():
    database = holding(whole("a", "b", version=4))
    change = SetChange(RecordKind.INTEREST, A, (1, 5), added=("c",), removed=("a",))
    assert database.merge(delta(5, ("c",), ("a",)), None) == change
    assert interest(database) == ["b", "c"]


def test_change_reports_only_what_it_changes():
    database = holding(whole("a", "b", version=4))
    change = SetChange(RecordKind.INTEREST, A, (1, 5), added=(), removed=())
    assert database.merge(delta(5, ("a",), ("x",)), None) == change


@pytest.mark.parametrize(
    "unfit",
    [
        delta(6, ("c",)),
        delta(2, ("c",), incarnation=2),
        delta(5, ("c",), incarnation=2),
        InterestRecord(A, 1, 5, 0, ("c",)),
    ],
)
def test_change_that_does_not_fit_changes_nothing(unfit):
    database = holding(whole("a", version=4))
    digest = database.digest
    assert database.merge(unfit, None) == FetchRequired((RecordKind.INTEREST, A))
    assert (interest(database), database.digest, flooded(database)) == (["a"], digest, {})


def test_change_of_a_set_that_is_not_here_does_not_fit():
    assert Database(plain()).merge(delta(2, ("a",)), None) == FetchRequired(
        (RecordKind.INTEREST, A)
    )


def test_first_change_of_an_incarnation_needs_no_base():
    database = holding(whole("a", "b", version=4))
    change = SetChange(RecordKind.INTEREST, A, (2, 1), added=("c",), removed=("a",))
    assert database.merge(delta(1, ("b", "c"), incarnation=2), None) == change


def test_late_change_is_not_applied_twice():
    database = holding(delta(1, ("a",)), delta(2, removed=("a",)))
    assert database.merge(delta(1, ("a",)), None) is None
    assert interest(database) == []


def test_interest_and_claims_are_different_rows():
    database = holding(whole("a"), ClaimsRecord(A, 1, 1, 0, ("g",)))
    assert (interest(database), list(database.names(RecordKind.CLAIMS, A))) == (["a"], ["g"])


# ---------------------------------------------------------------- sets in parts


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 1, 2, 0)])
def test_set_in_parts_counts_when_complete(order):
    database = holding(whole("b"))
    pieces = parts("a", "b", "c", version=2)
    *before, last = order
    assert [database.merge(pieces[part], None) for part in before] == [None] * len(before)
    assert (interest(database), database.stamp(RecordKind.INTEREST, A)) == (["b"], (1, 1))
    change = SetChange(RecordKind.INTEREST, A, (1, 2), added=("a", "c"), removed=())
    assert database.merge(pieces[last], None) == change
    assert interest(database) == ["a", "b", "c"]


def test_parts_of_another_version_replace_earlier_ones():
    database = Database(plain())
    database.merge(parts("a", "b")[0], None)
    assert database.merge(parts("x", "y", version=2)[1], None) is None
    change = SetChange(RecordKind.INTEREST, A, (1, 2), added=("x", "y"), removed=())
    assert database.merge(parts("x", "y", version=2)[0], None) == change


def test_set_in_parts_is_flooded_when_complete():
    database = Database(plain())
    first, second = parts("a", "b")
    database.merge(first, LEFT)
    assert flooded(database) == {}
    database.merge(second, LEFT)
    assert flooded(database) == {RIGHT: (whole("a", "b"),)}


def test_sender_of_a_set_in_parts_gets_none_back():
    database = Database(plain())
    pieces = holding(whole(*LONG)).row_records((RecordKind.INTEREST, A))
    for piece in pieces:
        database.merge(piece, LEFT)
    sends = database.drain_updates(LINKS)
    assert [link for link, _ in sends] == [RIGHT] * 3
    assert [record for _, update in sends for record in update.records] == pieces


# ---------------------------------------------------------------- how large a set would be


@pytest.mark.parametrize(
    ("record", "size"),
    [
        (delta(2, ("c", "d")), 4),
        (delta(2, ("c",), ("a", "b", "x")), 1),
        (whole("c", version=2), 1),
        (InterestRecord(B, 1, 1, 0, ("c", "d")), 2),
        (InterestRecord(B, 1, 1, 1, ("c", "d"), (), 0, 2), 2),
    ],
)
def test_size_that_a_set_would_have_is_known_before(record, size):
    assert holding(whole("a", "b")).size_after(record) == size


def test_size_of_a_set_in_parts_counts_arrived_parts():
    database = Database(plain())
    pieces = parts("a", "b", "c")
    database.merge(pieces[0], None)
    database.merge(pieces[2], None)
    sizes = [database.size_after(record) for record in (*pieces, parts("a", "b", version=2)[1])]
    assert sizes == [2, 3, 2, 1]


# ---------------------------------------------------------------- a node's own rows


def test_change_of_ones_own_set_makes_a_record():
    database = Database(plain())
    first = database.change_set(RecordKind.INTEREST, A, 3, (["a", "b"], []))
    second = database.change_set(RecordKind.INTEREST, A, 3, (["c"], ["a"]))
    assert first == [InterestRecord(A, 3, 1, 0, ("a", "b"))]
    assert second == [InterestRecord(A, 3, 2, 1, ("c",), ("a",))]
    assert interest(database) == ["b", "c"]
    assert flooded(database) == dict.fromkeys(LINKS, (*first, *second))


def test_no_change_makes_no_record():
    database = Database(plain())
    assert database.change_set(RecordKind.INTEREST, A, 3, ([], [])) == []
    assert database.summary() == Summary(())


def test_claims_are_not_flooded_because_announcements_carry_them():
    database = Database(plain())
    assert database.change_set(RecordKind.CLAIMS, A, 3, (["g"], [])) == [
        ClaimsRecord(A, 3, 1, 0, ("g",))
    ]
    assert (list(database.names(RecordKind.CLAIMS, A)), flooded(database)) == (["g"], {})


def test_large_change_is_split_with_removals_first():
    database = Database(plain())
    database.change_set(RecordKind.INTEREST, A, 1, (["b"], []))
    assert database.change_set(RecordKind.INTEREST, A, 1, (LONG[:3], ["b"])) == [
        InterestRecord(A, 1, 2, 1, (), ("b",)),
        InterestRecord(A, 1, 3, 2, tuple(LONG[:2])),
        InterestRecord(A, 1, 4, 3, tuple(LONG[2:3])),
    ]
    assert database.change_set(RecordKind.INTEREST, A, 1, (["a"], LONG[:3])) == [
        InterestRecord(A, 1, 5, 4, (), tuple(LONG[:2])),
        InterestRecord(A, 1, 6, 5, (), tuple(LONG[2:3])),
        InterestRecord(A, 1, 7, 6, ("a",)),
    ]
    assert interest(database) == ["a"]


def test_large_first_set_replaces_that_of_an_earlier_incarnation_at_once():
    others = holding(whole(*LONG[:3], version=7))
    database = Database(plain())
    first, second = database.change_set(RecordKind.INTEREST, A, 2, (LONG[1:4], []))
    flooded = [update.records for _, update in database.drain_updates([LEFT])]
    assert flooded == [(first,), (second,)]
    assert others.merge(first, LEFT) is None
    assert interest(others) == LONG[:3]
    assert others.merge(second, LEFT) == SetChange(
        RecordKind.INTEREST, A, (2, 1), (LONG[3],), (LONG[0],)
    )
    assert interest(others) == interest(database) == LONG[1:4]


def test_set_can_be_raised_to_a_new_incarnation():
    database = holding(whole("a", "b", version=4))
    database.restamp_own_set(RecordKind.INTEREST, A, 9)
    assert flooded(database) == dict.fromkeys(LINKS, (whole("a", "b", version=5, incarnation=9),))
    change = SetChange(RecordKind.INTEREST, A, (9, 6), added=("c",), removed=())
    assert database.merge(delta(6, ("c",), incarnation=9), None) == change


def test_raising_a_set_that_was_never_written_writes_an_empty_one():
    database = Database(plain())
    database.restamp_own_set(RecordKind.CLAIMS, A, 9)
    assert flooded(database) == dict.fromkeys(LINKS, (ClaimsRecord(A, 9, 1, 1, ()),))


def test_expired_node_leaves_no_rows():
    database = holding(node_record(1, node=B))
    before = (database.digest, database.summary())
    for record in (node_record(1), whole("a"), ClaimsRecord(A, 1, 1, 0, ("g",))):
        database.merge(record, None)
    database.expire_node(A)
    assert (database.digest, database.summary()) == before
    assert (database.nodes, interest(database)) == ({B: node_record(1, node=B)}, [])


def test_node_with_partial_sets_can_expire():
    database = Database(plain())
    first, second = parts("a", "b")
    database.merge(first, None)
    database.expire_node(A)
    assert database.merge(second, None) is None


# ---------------------------------------------------------------- flooding


def test_change_is_sent_once_to_all_but_its_source():
    database = Database(plain())
    database.merge(node_record(1), LEFT)
    assert flooded(database) == {RIGHT: (node_record(1),)}
    assert flooded(database) == {}


def test_neighbour_that_sent_the_same_record_does_not_get_it():
    database = Database(plain())
    database.merge(node_record(1), LEFT)
    database.merge(node_record(1), RIGHT)
    database.merge(node_record(1), RIGHT)
    assert flooded(database) == {}


@pytest.mark.parametrize("late", [node_record(1), node_record(2, incarnation=0)])
def test_neighbour_that_sent_an_older_record_gets_the_newer(late):
    database = Database(plain())
    database.merge(node_record(2), LEFT)
    database.merge(late, RIGHT)
    assert flooded(database) == {RIGHT: (node_record(2),)}


def test_neighbour_that_sent_the_version_of_an_earlier_incarnation_gets_the_record():
    database = Database(plain())
    database.merge(delta(1, ("a",), incarnation=2), LEFT)
    database.merge(delta(1, ("b",), incarnation=1), RIGHT)
    assert flooded(database) == {RIGHT: (delta(1, ("a",), incarnation=2),)}


def test_neighbour_that_sent_a_later_copy_gets_the_earlier():
    earlier, later = node_record(1, key=b"a"), node_record(1, key=b"b")
    database = Database(plain())
    database.merge(earlier, LEFT)
    database.merge(later, RIGHT)
    assert flooded(database) == {RIGHT: (earlier,)}


def test_newer_node_record_replaces_a_queued_one():
    database = Database(plain())
    database.merge(node_record(1), LEFT)
    database.merge(node_record(2), RIGHT)
    assert flooded(database) == {LEFT: (node_record(2),)}


def test_changes_of_a_set_are_queued_in_order():
    database = Database(plain())
    database.merge(delta(1, ("a",)), LEFT)
    database.merge(delta(2, ("b",)), RIGHT)
    assert flooded(database) == {LEFT: (delta(2, ("b",)),), RIGHT: (delta(1, ("a",)),)}


def test_claims_in_announcements_are_not_flooded():
    database = Database(plain())
    claims = ClaimsRecord(A, 1, 1, 0, ("g",))
    change = SetChange(RecordKind.CLAIMS, A, (1, 1), added=("g",), removed=())
    assert database.merge(claims, LEFT, flood=False) == change
    assert flooded(database) == {}


def test_records_share_a_frame_up_to_a_bound():
    record = whole("x" * (UPDATE_BYTES // 16))
    fitting = UPDATE_BYTES // estimate_bytes(record)
    assert pack_updates([]) == []
    assert pack_updates([record] * fitting) == [Update((record,) * fitting)]
    assert pack_updates([record] * (fitting + 1)) == [
        Update((record,) * fitting),
        Update((record,)),
    ]


def test_record_above_the_bound_travels_alone():
    small, large = whole("a"), whole("x" * UPDATE_BYTES)
    assert pack_updates([small, large, small]) == [Update((r,)) for r in (small, large, small)]


# ---------------------------------------------------------------- three databases


NODES = [NodeId(1), NodeId(2), NodeId(3)]
SETS = [RecordKind.INTEREST, RecordKind.CLAIMS]
some_names = st.lists(st.sampled_from(LONG), unique=True, max_size=3)


class Three:
    """Three nodes, each linked to both others. Links are named by the node at their other end."""

    def __init__(self) -> None:
        self.databases = {node: Database(plain()) for node in NODES}
        self.incarnations = dict.fromkeys(NODES, 1)
        self.mail: dict[tuple[NodeId, NodeId], list[Record]] = {
            (one, other): [] for one, other in product(NODES, repeat=2) if one != other
        }

    def write(self, node: NodeId) -> None:
        database = self.databases[node]
        version = database.stamp(RecordKind.NODE, node)[1] + 1
        database.merge(node_record(version, self.incarnations[node], node), None)

    def change(self, node: NodeId, kind: RecordKind, added: list[str], removed: list[str]) -> None:
        names = self.databases[node].names(kind, node)
        new = [name for name in added if name not in names and name not in removed]
        old = [name for name in removed if name in names]
        self.databases[node].change_set(kind, node, self.incarnations[node], (new, old))

    def outrank(self, node: NodeId) -> None:
        self.incarnations[node] += 1
        self.write(node)
        for kind in SETS:
            self.databases[node].restamp_own_set(kind, node, self.incarnations[node])

    def flush(self, node: NodeId) -> None:
        links = [LinkId(other) for other in NODES if other != node]
        for link, update in self.databases[node].drain_updates(links):
            self.mail[node, NodeId(link)] += update.records

    def deliver(self, sender: NodeId, receiver: NodeId, place: int = 0, keep: bool = False) -> None:
        mail = self.mail[sender, receiver]
        if not mail:
            return
        place %= len(mail)
        record = mail[place] if keep else mail.pop(place)
        if record.node == receiver:
            return
        change = self.databases[receiver].merge(record, LinkId(sender))
        if isinstance(change, FetchRequired):
            mail += self.databases[sender].row_records(change.row)

    def lose(self, sender: NodeId, receiver: NodeId) -> None:
        self.mail[sender, receiver].clear()

    def compare(self) -> None:
        """Every pair exchanges missing rows until none is missing."""
        for _ in NODES:
            for one, other in self.mail:
                summary = self.databases[other].summary()
                for record in chain(*self.databases[one].missing_from(summary)):
                    if record.node != other:
                        self.databases[other].merge(record, LinkId(one))

    def drain(self) -> None:
        for _ in range(20):
            for node in NODES:
                self.flush(node)
            for pair, mail in self.mail.items():
                while mail:
                    self.deliver(*pair)

    def check(self) -> None:
        for database in self.databases.values():
            prints = [fingerprint(*row, stamp) for row, stamp in database.stamps.items()]
            assert database.digest == sum(prints) % (1 << 64)
        for one, other in combinations(self.databases.values(), 2):
            assert (one.digest == other.digest) == (one.stamps == other.stamps)
            # Names have one order everywhere: parts of a set from two neighbours must fit.
            shared = dict(one.stamps.items() & other.stamps.items())
            assert all(one.row_records(row) == other.row_records(row) for row in shared)


nodes = st.sampled_from(NODES)
pairs = st.sampled_from([(one, other) for one, other in product(NODES, repeat=2) if one != other])
kinds = st.sampled_from(SETS)
orderly_steps = st.one_of(
    st.tuples(st.just("write"), nodes),
    st.tuples(st.just("change"), nodes, st.just(RecordKind.INTEREST), some_names, some_names),
    st.tuples(st.just("outrank"), nodes),
    st.tuples(st.just("flush"), nodes),
    pairs.map(lambda pair: ("deliver", *pair)),
)
unruly_steps = st.one_of(
    orderly_steps,
    st.tuples(st.just("change"), nodes, kinds, some_names, some_names),
    st.tuples(pairs, st.integers(0, 5), st.booleans()).map(
        lambda drawn: ("deliver", *drawn[0], drawn[1], drawn[2])
    ),
    pairs.map(lambda pair: ("lose", *pair)),
)


@settings(max_examples=60)
@given(st.lists(unruly_steps, max_size=40))
def test_comparison_makes_databases_equal_after_any_loss(steps):
    three = Three()
    for name, *arguments in steps:
        getattr(three, name)(*arguments)
        three.check()
    three.compare()
    three.check()
    first, *others = three.databases.values()
    assert [database.stamps for database in others] == [first.stamps] * 2
    for kind, node in product(SETS, NODES):
        truth = list(three.databases[node].names(kind, node))
        assert all(list(d.names(kind, node)) == truth for d in three.databases.values())


@settings(max_examples=60)
@given(st.lists(orderly_steps, max_size=40))
def test_flooding_on_ordered_links_makes_databases_equal(steps):
    three = Three()
    for name, *arguments in steps:
        getattr(three, name)(*arguments)
    three.drain()
    three.check()
    assert len({database.digest for database in three.databases.values()}) == 1
