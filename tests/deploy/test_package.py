"""The script behind `./run package`. test_debian_package.py builds and installs a package."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import package

SCRIPTS = sorted((package.DEPLOY / "debian").glob("p*"))

IN_ORDER = ["0.2.0", "0.3.0.dev1", "0.3.0.dev2", "0.3.0a1", "0.3.0b1", "0.3.0rc1", "0.3.0", "0.3.1"]


def test_versions_have_the_order_of_pip():
    if shutil.which("dpkg") is None:
        pytest.skip("there is no dpkg here")
    made = [package.debian_version(version, "12") for version in IN_ORDER]
    made.append(package.debian_version(IN_ORDER[-1], "13"))
    for earlier, later in zip(made, made[1:], strict=False):
        command = ["dpkg", "--compare-versions", earlier, "lt", later]
        assert subprocess.run(command, check=False).returncode == 0, (earlier, later)


def test_documents_name_the_file_that_is_built():
    version = package.debian_version(package.read_version(), "12")
    line = f"apt-get install ./hansa_{version}_amd64.deb\n"
    for page in ("tutorial.md", "how-to/install.md"):
        assert line in (package.ROOT / "docs" / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_of_the_package_are_valid(script: Path):
    assert script.read_text().startswith("#!/bin/sh\nset -e\n")
    subprocess.run(["sh", "-n", str(script)], check=True)


def test_all_four_scripts_exist():
    assert [script.name for script in SCRIPTS] == ["postinst", "postrm", "preinst", "prerm"]


def test_environment_starts_the_command_line(tmp_path):
    prefix = tmp_path / "hansa"
    (prefix / "bin").parent.mkdir()
    package.add_environment(prefix, "3.11")
    script = (prefix / "bin" / "hansa").read_text()
    compile(script, "hansa", "exec")
    assert script.startswith("#!/opt/hansa/bin/python3 -I\n")
    assert (prefix / "bin" / "python3").readlink() == Path("/usr/bin/python3.11")


def test_units_start_the_environment_of_the_package():
    unit = (package.DEPLOY / "hansa-agent.service").read_text()
    assert f"\nExecStart=/{package.PREFIX}/bin/hansa agent --config /etc/hansa/agent.toml\n" in unit


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_same_commit_gives_the_same_bytes(tmp_path):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb here")

    def build(out: Path, umask: int) -> dict[str, str]:
        command = [sys.executable, str(package.DEPLOY / "package.py"), "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, umask=umask)
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in out.iterdir()}

    first = build(tmp_path / "first", 0o022)
    assert sorted(Path(name).suffix for name in first) == [".deb", ".gz", ".whl"]
    assert build(tmp_path / "second", 0o077) == first
