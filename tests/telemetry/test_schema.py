"""The schema keeps its promises to other programs: numbers, names and types."""

import types
import typing

import pytest

from hansa.telemetry import schema
from hansa.telemetry.columns import COLUMNS, FIELD_COLUMNS, KEY_COLUMNS

TYPES = {
    "node": int,
    "integer": int,
    "real": float,
    "text": str,
    "nodes": tuple[int, ...],
}


def test_kinds_have_numbers_and_none_changes():
    """Add to the end; a number or name that changed would turn old logs into nonsense."""
    assert [
        (number, schema.KIND_NAMES[kind]) for number, kind in schema.RECORD_TYPES.items()
    ] == list(
        enumerate(
            """captured sent received duplicate delivered dropped repaired gap given_up control
            core_elected core_lost parents mesh_joined mesh_left member_joined member_lost wanted
            unwanted subscribed unsubscribed installed ignored life_raised epoch_renewed link_up
            link_down link_refused round_trip counter started stopped fault converged
            run observed""".split(),
            start=1,
        )
    )


@pytest.mark.parametrize(
    "kind", schema.RECORD_TYPES.values(), ids=lambda kind: schema.KIND_NAMES[kind]
)
def test_every_field_is_a_column_of_its_type(kind):
    hints = typing.get_type_hints(kind)
    for field in kind.__struct_fields__:
        found = hints[field]
        if isinstance(found, types.UnionType):
            (found,) = [each for each in found.__args__ if each is not type(None)]
        assert found == TYPES[FIELD_COLUMNS[field][0]], field


def test_no_column_is_without_a_kind():
    used = {field for kind in schema.RECORD_TYPES.values() for field in kind.__struct_fields__}
    assert set(FIELD_COLUMNS) - used == set()


def test_key_and_fields_do_not_clash():
    assert list(COLUMNS) == [*KEY_COLUMNS, *FIELD_COLUMNS]
