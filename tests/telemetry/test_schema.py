"""Compatibility of the telemetry schema: tags, names and types."""

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


def test_tags_and_names_of_kinds_never_change():
    """Append new kinds; with another tag or name, old logs would be misread."""
    assert [
        (number, schema.KIND_NAMES[kind]) for number, kind in schema.RECORD_TYPES.items()
    ] == list(
        enumerate(
            """captured copy_sent copy_received duplicate delivered dropped repaired gap
            delivery_abandoned control_frame_sent core_elected core_lost parents_changed mesh_joined
            mesh_left node_reachable node_unreachable interest_added interest_removed
            subscribed_at_broker unsubscribed_at_broker interest_installed ignored
            incarnation_raised epoch_rollover_required link_up link_down link_refused round_trip
            counter node_started node_stopped fault_injected converged simulation_started
            client_deliveries_counted security_event alarm_raised alarm_cleared""".split(),
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


def test_every_column_belongs_to_a_kind():
    used = {field for kind in schema.RECORD_TYPES.values() for field in kind.__struct_fields__}
    assert set(FIELD_COLUMNS) - used == set()


def test_key_and_field_columns_are_distinct():
    assert list(COLUMNS) == [*KEY_COLUMNS, *FIELD_COLUMNS]
