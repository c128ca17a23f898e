"""The jars of Delta: pinned, verified, and found in a directory on machines without a network."""

import shutil

import pytest

from hansa.errors import UsageError
from hansa.pipeline import jars


def test_directory_of_jars_is_used_if_they_are_intact(tmp_path):
    kept = jars.jar_directory({})
    if not all((kept / jar.file_name).is_file() for jar in jars.locked_jars()):
        pytest.skip("the jars are not fetched yet: `./run test tests/pipeline` fetches them")
    shutil.copytree(kept, tmp_path / "jars")
    given = {jars.DIRECTORY: str(tmp_path / "jars")}
    found = jars.delta_jars(given)
    assert [path.name for path in found] == [jar.file_name for jar in jars.locked_jars()]
    found[1].write_bytes(b"other")
    with pytest.raises(UsageError, match=r"delta-storage.* its SHA-256 differs from jars\.lock"):
        jars.delta_jars(given)
    found[1].unlink()
    with pytest.raises(UsageError, match=r"has no delta-storage-4\.4\.0\.jar \(io\.delta:delta-st"):
        jars.delta_jars(given)


def test_failed_fetch_names_coordinate_and_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(jars, "jar_directory", lambda environment: tmp_path / "cache")
    monkeypatch.setattr(jars, "RESOLVE", "import sys; sys.exit('host not found')")
    said: list[str] = []
    with pytest.raises(UsageError) as error:
        jars.delta_jars({}, said.append)
    assert str(error.value).startswith(
        "cannot fetch io.delta:delta-spark_4.2_2.13:4.4.0 from Maven Central (host not found);"
    )
    assert "--jars DIR or HANSA_JARS" in str(error.value)
    assert said == [
        "fetching io.delta:delta-spark_4.2_2.13:4.4.0 from Maven Central, once: 13 MB into"
        f" {tmp_path / 'cache'}"
    ]
