"""A lake as a directory: what it refuses, and that it is never half-changed."""

import json

import pytest

from hansa.errors import UsageError
from hansa.pipeline.lake import Lake, TableEntry


def staged(lake, text):
    place = lake.staging("generation")
    (place / "gold" / "delay").mkdir(parents=True)
    (place / "gold" / "delay" / "part").write_text(text)
    return place


def test_what_is_no_lake_is_refused(tmp_path):
    (tmp_path / "something").write_text("")
    with pytest.raises(UsageError, match="is no lake; name a new directory"):
        Lake.open_or_create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_experiments_may_be_there_before(tmp_path):
    (tmp_path / "experiments").mkdir()
    Lake.open_or_create(tmp_path)
    Lake(tmp_path)


def test_a_lake_of_another_version_is_refused_and_left_alone(tmp_path):
    (tmp_path / "lake.json").write_text('{"version": 2}')
    with pytest.raises(UsageError, match="is a lake of version 2, this Hansa has version 1"):
        Lake.open_or_create(tmp_path)


def test_a_lake_without_tables_says_how_to_make_them(tmp_path):
    with pytest.raises(UsageError, match="has no tables yet; `hansa pipeline run` makes them"):
        Lake.open_or_create(tmp_path).tables()


def test_two_pipelines_do_not_write_at_once(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    with (
        lake.write_lock(),
        pytest.raises(UsageError, match="another pipeline is writing"),
        Lake(tmp_path).write_lock(),
    ):
        pass


def test_a_generation_appears_whole_and_the_one_before_stays_for_its_readers(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    kept = [TableEntry("delay", "gold", "One row per run.", 1)]
    places = []
    for text in "abc":
        lake.publish(staged(lake, text), kept)
        places.append(lake.table_path(kept[0]))
    assert lake.tables() == kept
    assert (tmp_path / "tables" / "gold" / "delay" / "part").read_text() == "c"
    assert [place.exists() for place in places] == [False, True, True]


def test_a_checkpoint_and_bronze_of_different_times_are_refused(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    with lake.write_lock():
        pass
    for number in (0, 1):
        lake.batch_path("events", number).mkdir()
    with pytest.raises(UsageError, match="are not of the same time"), lake.write_lock():
        pass
    commits = lake.checkpoint("events") / "commits"
    commits.mkdir(parents=True)
    (commits / "1").write_text("v1")
    with lake.write_lock():
        pass
    (commits / "2").write_text("v1")
    with pytest.raises(UsageError, match="are not of the same time"), lake.write_lock():
        pass


def test_what_a_killed_writer_left_is_cleared_away(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    staged(lake, "half")
    with Lake(tmp_path).write_lock():
        assert not (tmp_path / "staging").exists()
    assert json.loads((tmp_path / "lake.json").read_text()) == {"version": 1, "format": "parquet"}


def test_a_lake_keeps_its_format(tmp_path):
    assert Lake.open_or_create(tmp_path, "delta").format == "delta"
    assert Lake.open_or_create(tmp_path).format == "delta"
    with pytest.raises(UsageError, match="is a lake of format delta, not iceberg"):
        Lake.open_or_create(tmp_path, "iceberg")
    (tmp_path / "lake.json").write_text('{"version": 1}')  # made before there were formats
    assert Lake(tmp_path).format == "parquet"


@pytest.mark.parametrize("text", ["", '{"tables": [{"name": "x"}]}', '{"tables": [1]}', "[]"])
def test_damaged_words_about_tables_are_one_sentence(tmp_path, text):
    lake = Lake.open_or_create(tmp_path)
    lake.publish(staged(lake, "a"), [])
    (tmp_path / "tables" / "tables.json").write_text(text)
    with pytest.raises(UsageError, match=r"tables\.json is damaged; `hansa pipeline run` makes"):
        lake.tables()


def test_what_a_newer_hansa_says_of_a_table_is_passed_over(tmp_path):
    lake = Lake.open_or_create(tmp_path)
    kept = [TableEntry("delay", "gold", "One row per run.", 1)]
    lake.publish(staged(lake, "a"), kept)
    place = tmp_path / "tables" / "tables.json"
    place.write_text(place.read_text().replace('"rows"', '"colour": "red", "rows"'))
    assert lake.tables() == kept


def test_a_file_about_payloads_is_remembered(tmp_path):
    lake = Lake.open_or_create(tmp_path / "lake")
    assert lake.payloads is None
    (tmp_path / "mine").write_text("[t]")
    lake.save_payloads(tmp_path / "mine")
    assert (kept := Lake(tmp_path / "lake").payloads) is not None
    assert kept.read_text() == "[t]\n"
