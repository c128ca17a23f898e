"""The OpenAPI document drives requests of all kinds, sound and unsound: never a 5xx, and every
answer is as the document says."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.manager.serving import Served

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,unsupported_method,ignored_auth"
)
TOKEN = "fuzzer"


def fuzz(database: str, folder: Path, *options: str) -> None:
    served = Served(database, {"HANSA_MANAGER_TOKEN": TOKEN}, rate=100_000.0)
    for number in range(3):
        link = {"link": f"127.0.0.1:{10500 + number}", "node": f"{number:016x}"}
        assert served.ask("POST", "/api/v1/join", link, TOKEN)[0] == 200
    command = [
        str(Path(sys.executable).with_name("st")), "run", f"{served.url}/openapi.json",
        "--header", f"Authorization: Bearer {TOKEN}", "--checks", CHECKS, "--seed", "1",
        "--exclude-path", "/api/v1/events",  # an endless stream, tested separately
        "--continue-on-failure", "--warnings", "off", "--suppress-health-check", "all", *options,
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder)
    finally:
        served.stop()
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_short_fuzz_run(tmp_path):
    database = f"sqlite:///{tmp_path / 'm.db'}"
    fuzz(database, tmp_path, "--max-examples", "3", "--phases", "fuzzing")


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_long_fuzz_run(database, tmp_path):
    fuzz(database, tmp_path, "--max-examples", "300")
