"""The script behind `./run package`. test_debian_package.py builds and installs a package."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tools.wheel_hook import platform_tag

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


BOOKWORM, TRIXIE = package.RELEASES["12"], package.RELEASES["13"]


@pytest.mark.parametrize(
    ("tag", "release", "architecture", "fits"),
    [
        ("cp311-cp311-manylinux_2_36_x86_64", BOOKWORM, "amd64", True),
        ("cp311-cp311-manylinux_2_31_x86_64", BOOKWORM, "amd64", True),
        ("cp311-cp311-manylinux_2_41_x86_64", BOOKWORM, "amd64", False),
        ("cp311-cp311-manylinux_2_36_x86_64", BOOKWORM, "arm64", False),
        ("cp311-cp311-manylinux_2_36_x86_64", TRIXIE, "amd64", False),
        ("cp313-cp313-manylinux_2_36_x86_64", TRIXIE, "amd64", True),
        ("cp311-cp311-macosx_11_0_arm64", BOOKWORM, "arm64", False),
    ],
)
def test_compiled_core_is_packaged_only_for_its_python_and_platform(
    tag, release, architecture, fits
):
    assert package.fits_target(f"hansa-0.3.0-{tag}.whl", release, architecture) == fits


@pytest.mark.parametrize(
    ("system", "library", "tag"),
    [
        ("linux-x86_64", ("glibc", "2.36"), "manylinux_2_36_x86_64"),
        ("linux-x86_64", ("", ""), "linux_x86_64"),
        ("macosx-11.0-arm64", ("", ""), "macosx_11_0_arm64"),
    ],
)
def test_tag_of_the_platform_is_one_that_pip_knows(monkeypatch, system, library, tag):
    monkeypatch.setattr("sysconfig.get_platform", lambda: system)
    monkeypatch.setattr("platform.libc_ver", lambda: library)
    assert platform_tag().partition("-")[2].partition("-")[2] == tag


def test_wheel_for_this_platform_runs_the_compiled_core(tmp_path):
    build = package.find_compiled_core()
    if build is None:
        pytest.skip("there is no build of these sources")
    wheel = package.build_platform_wheel(tmp_path, build)
    assert wheel.name.endswith(f"-{platform_tag()}.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "HANSA_PURE": ""}
    shown = subprocess.check_output(
        [sys.executable, "-P", "-m", "hansa.cli", "--version"], env=environment, text=True
    )
    assert shown == f"hansa {package.read_version()} (compiled)\n"


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
    assert {Path(name).suffix for name in first} == {".deb", ".gz", ".whl"}
    assert build(tmp_path / "second", 0o077) == first
