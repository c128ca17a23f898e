"""A lake as a directory: what it refuses, and atomic changes."""

import json

import pytest

from hansa.errors import UsageError
from hansa.pipeline.lake import Lake, TableEntry


def staged(lake, text):
    place = lake.staging("generation")
    (place / "gold" / "delay").mkdir(parents=True)
    (place / "gold" / "delay" / "part").write_text(text)
    return place


def test_other_directory_is_not_opened_as_lake(tmp_path):
    (tmp_path / "something").write_text("")
    with pytest.raises(UsageError, match="is not a lake; name a new directory"):
        Lake.open_or_create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_experiments_may_exist_before_the_lake(tmp_path):
    (tmp_path / "experiments").mkdir()
    Lake.open_or_create(tmp_path)
    Lake(tmp_path)


def test_lake_of_another_version_is_refused(tmp_path):
    (tmp_path / "lake.json").write_text('{"version": 1}')
    with pytest.raises(UsageError, match="is a lake of version 1, this Hansa has version 2"):
        Lake.open_or_create(tmp_path)


def test_lake_without_tables_says_how_to_build_them(tmp_path):
    with pytest.raises(UsageError, match="has no tables yet; `hansa pipeline run` builds them"):
        Lake.open_or_create(tmp_path).tables()


def test_second_writer_is_refused(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    with (
        lake.write_lock(),
        pytest.raises(UsageError, match="another pipeline is writing"),
        Lake(tmp_path).write_lock(),
    ):
        pass


def test_publishing_replaces_the_tables_and_keeps_the_previous_generation(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    entries = [TableEntry("delay", "gold", "One row per run.", 1)]
    places = []
    for text in "abc":
        lake.publish(staged(lake, text), entries)
        places.append(lake.table_path(entries[0]))
    assert lake.tables() == entries
    assert (tmp_path / "tables" / "gold" / "delay" / "part").read_text() == "c"
    assert [place.exists() for place in places] == [False, True, True]


def test_mismatch_of_checkpoint_and_bronze_is_refused(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    with lake.write_lock():
        pass
    for number in (0, 1):
        lake.batch_path("events", number).mkdir()
    with pytest.raises(UsageError, match="do not match"), lake.write_lock():
        pass
    commits = lake.checkpoint("events") / "commits"
    commits.mkdir(parents=True)
    (commits / "1").write_text("v1")
    with lake.write_lock():
        pass
    (commits / "2").write_text("v1")
    with pytest.raises(UsageError, match="do not match"), lake.write_lock():
        pass


def test_staging_of_a_killed_writer_is_removed(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    staged(lake, "half")
    with Lake(tmp_path).write_lock():
        assert not (tmp_path / "staging").exists()
    assert json.loads((tmp_path / "lake.json").read_text()) == {"version": 2, "format": "parquet"}


def test_format_of_a_lake_cannot_change(tmp_path):
    assert Lake.open_or_create(tmp_path, "delta").format == "delta"
    assert Lake.open_or_create(tmp_path).format == "delta"
    with pytest.raises(UsageError, match="is a lake of format delta, not iceberg"):
        Lake.open_or_create(tmp_path, "iceberg")
    (tmp_path / "lake.json").write_text('{"version": 2}')
    assert Lake(tmp_path).format == "parquet"


@pytest.mark.parametrize("text", ["", '{"tables": [{"name": "x"}]}', '{"tables": [1]}', "[]"])
def test_corrupt_table_list_is_reported_in_one_sentence(tmp_path, text):
    lake = Lake.open_or_create(tmp_path)
    lake.publish(staged(lake, "a"), [])
    (tmp_path / "tables" / "tables.json").write_text(text)
    with pytest.raises(UsageError, match=r"tables\.json is corrupt; `hansa pipeline run` rebuilds"):
        lake.tables()


def test_unknown_fields_of_the_table_list_are_ignored(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    entries = [TableEntry("delay", "gold", "One row per run.", 1)]
    lake.publish(staged(lake, "a"), entries)
    place = tmp_path / "tables" / "tables.json"
    place.write_text(place.read_text().replace('"rows"', '"colour": "red", "rows"'))
    assert lake.tables() == entries


def test_payload_declaration_is_stored(tmp_path):
    lake = Lake.open_or_create(tmp_path / "lake")
    assert lake.payloads is None
    (tmp_path / "mine").write_text("[t]")
    lake.save_payloads(tmp_path / "mine")
    assert (entries := Lake(tmp_path / "lake").payloads) is not None
    assert entries.read_text() == "[t]\n"
