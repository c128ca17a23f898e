"""`./run package`: build wheels, sdist and Debian package into a directory.

There is one wheel for every platform, and one with the compiled core (docs/decisions/0036) for the
Python and the platform that build it. `--pure` leaves out the compiled core.

The Debian package has a Python environment of its own in /opt/hansa: the wheels that
requirements/runtime.lock names by hash, and Hansa. Wheels are chosen for the Python and the
architecture of the target, so the machine that builds needs neither. Its core is compiled if the
wheel for this platform also fits the target. docs/decisions/0032 explains the layout.

All files get the time SOURCE_DATE_EPOCH, by default that of the last commit, and fixed modes: the
same commit gives the same bytes.
"""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
LOCK = ROOT / "requirements" / "runtime.lock"
PREFIX = "opt/hansa"

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture, and that of wheels."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Debian: the Python and the C library that its packages use."""

    python: tuple[int, int]
    glibc: tuple[int, int]


RELEASES = {"12": Release((3, 11), (2, 36)), "13": Release((3, 13), (2, 41))}

SCRIPT = f"""#!/{PREFIX}/bin/python3 -I
import sys

from hansa.cli.main import main

sys.exit(main())
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run package", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory (default: dist)")
    parser.add_argument(
        "--debian", choices=RELEASES, default="12", help="release of the target (default: 12)"
    )
    parser.add_argument(
        "--arch", choices=ARCHITECTURES, default=_own_architecture(), help="of the target"
    )
    parser.add_argument("--pure", action="store_true", help="without the compiled core")
    args = parser.parse_args()
    os.environ.setdefault("SOURCE_DATE_EPOCH", _commit_time())
    args.out.mkdir(parents=True, exist_ok=True)
    pure, sdist = build_python_packages(args.out)
    print(pure, sdist, sep="\n", flush=True)
    build = None if args.pure else find_compiled_core()
    compiled = build_platform_wheel(args.out, build) if build else None
    if compiled:
        print(compiled, flush=True)
    fits = compiled and fits_target(compiled.name, RELEASES[args.debian], args.arch)
    wheel = compiled if compiled and fits else pure
    if shutil.which("dpkg-deb") is None:
        print("hansa: dpkg-deb is missing, so no Debian package was built", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / "tree"
        package = stage(tree, wheel, args.debian, args.arch)
        file = args.out / f"{package}.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(file)
    return 0


def _own_architecture() -> str:
    machine = os.uname().machine
    return next((name for name, wheel in ARCHITECTURES.items() if wheel == machine), "amd64")


def _commit_time() -> str:
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    return str(int((ROOT / "CHANGELOG.md").stat().st_mtime))  # an unpacked sdist


def build_python_packages(out: Path) -> tuple[Path, Path]:
    """Build wheel and sdist; return their paths."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out.resolve())]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"hansa: cannot build the wheel: {done.stderr}")
    version = read_version()
    return out / f"hansa-{version}-py3-none-any.whl", out / f"hansa-{version}.tar.gz"


def find_compiled_core() -> Path | None:
    """Return the build of the present sources, which `./run package` makes if it can."""
    sys.path.insert(0, str(ROOT / "src"))
    from hansa.compiled_core import find_build

    return find_build()


def build_platform_wheel(out: Path, build: Path) -> Path:
    """Build the wheel with the compiled core; return its path."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory]
        environment = os.environ | {"HANSA_COMPILED_BUILD": str(build)}
        done = subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, text=True, env=environment
        )
        if done.returncode:
            raise SystemExit(f"hansa: cannot build the wheel for this platform: {done.stderr}")
        (made,) = Path(directory).iterdir()
        return Path(shutil.move(made, out / made.name))


def fits_target(wheel: str, target: Release, architecture: str) -> bool:
    """Whether a wheel for a platform, by its name, runs on a release of Debian."""
    found = re.search(r"-cp(\d)(\d+)-cp\d+-manylinux_(\d+)_(\d+)_(.+)\.whl$", wheel)
    if found is None:
        return False
    python, libc = (int(found[1]), int(found[2])), (int(found[3]), int(found[4]))
    is_same_machine = found[5] == ARCHITECTURES[architecture]
    return is_same_machine and python == target.python and libc <= target.glibc


def read_version() -> str:
    text = (ROOT / "src" / "hansa" / "__init__.py").read_text()
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.M)
    return str(found)


def debian_version(version: str, release: str) -> str:
    """Return a version that dpkg orders as pip does: 0.3.0~~dev1, 0.3.0~a1, 0.3.0. The package for
    a later release of Debian comes after that for an earlier one."""
    made = re.sub(r"\.dev(\d+)", r"~~dev\1", version)
    return re.sub(r"(a|b|rc)(\d+)", r"~\1\2", made) + f"+deb{release}"


# ---------------------------------------------------------------- the tree of the Debian package


def stage(tree: Path, wheel: Path, release: str, architecture: str) -> str:
    """Write all files of the package below `tree`; return the name of the package file."""
    target = RELEASES[release]
    python = f"{target.python[0]}.{target.python[1]}"
    packages = tree / PREFIX / "lib" / f"python{python}" / "site-packages"
    install_libraries(packages, target, ARCHITECTURES[architecture])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    add_environment(tree / PREFIX, python)
    _add_system_files(tree)
    _set_modes(tree)
    version = debian_version(read_version(), release)
    texts = {
        "version": version,
        "architecture": architecture,
        "installed_kib": str(_bytes_of_files(tree) // 1024),
        "python": python,
        "next_python": f"{target.python[0]}.{target.python[1] + 1}",
        "glibc": f"{target.glibc[0]}.{target.glibc[1]}",
    }
    _add_control(tree, texts)
    return f"hansa_{version}_{architecture}"


def _bytes_of_files(tree: Path) -> int:
    """Return the size of all files; that of directories depends on the file system."""
    return sum(each.lstat().st_size for each in tree.rglob("*") if not each.is_dir())


def install_libraries(packages: Path, target: Release, machine: str) -> None:
    """Install what the lock file names, for the target and not for this machine."""
    if re.search(r"^[^#\s].*;.*\bpython_(full_)?version\b", LOCK.read_text(), re.M):
        raise SystemExit(
            f"hansa: {LOCK} depends on the version of Python, which pip takes from here"
        )
    (major, minor), (_, libc) = target.python, target.glibc
    platforms = [f"manylinux_2_{each}_{machine}" for each in range(libc, 16, -1)]
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps"),
        *("--require-hashes", "--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", f"{major}.{minor}", "--target", str(packages)),
        *(f"--platform={each}" for each in (*platforms, f"manylinux2014_{machine}")),
        *("-r", str(LOCK)),
    ]
    if subprocess.run(command, check=False, env=os.environ | {"PIP_USER": "0"}).returncode:
        raise SystemExit("hansa: the libraries cannot be installed, see above")
    shutil.rmtree(packages / "bin", ignore_errors=True)  # commands of libraries


def add_environment(prefix: Path, python: str) -> None:
    """Add what makes a directory a virtual environment, as `python3 -m venv` does at the target."""
    (prefix / "bin").mkdir()
    (prefix / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"
    )
    (prefix / "bin" / "python3").symlink_to(f"/usr/bin/python{python}")
    (prefix / "bin" / "python").symlink_to("python3")
    (prefix / "bin" / "hansa").write_text(SCRIPT)


def _add_system_files(tree: Path) -> None:
    copies = {
        "hansa-agent.service": "usr/lib/systemd/system",
        "hansa-broker.service": "usr/lib/systemd/system",
        "hansa-proxy.socket": "usr/lib/systemd/system",
        "mosquitto.conf": "etc/hansa",
        "prometheus/hansa.rules.yml": "usr/share/hansa/prometheus",
        "grafana/hansa.json": "usr/share/hansa/grafana",
        "debian/copyright": "usr/share/doc/hansa",
        "../docs/node.toml": "usr/share/doc/hansa",
        "../README.md": "usr/share/doc/hansa",
    }
    for name, place in copies.items():
        (tree / place).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DEPLOY / name, tree / place / Path(name).name)
    users = tree / "usr/lib/sysusers.d"
    users.mkdir()
    shutil.copyfile(DEPLOY / "hansa.sysusers", users / "hansa.conf")
    (tree / "usr/bin").mkdir()
    (tree / "usr/bin/hansa").symlink_to(f"/{PREFIX}/bin/hansa")
    changes = gzip.compress((ROOT / "CHANGELOG.md").read_bytes(), mtime=0)
    (tree / "usr/share/doc/hansa/changelog.gz").write_bytes(changes)


def _set_modes(tree: Path) -> None:
    """Set the modes that do not depend on the umask of this machine."""
    for each in (tree, *tree.rglob("*")):
        if not each.is_symlink():
            is_program = each.is_dir() or each.parent == tree / PREFIX / "bin"
            each.chmod(0o755 if is_program else 0o644)


def _add_control(tree: Path, texts: dict[str, str]) -> None:
    files = sorted(each for each in tree.rglob("*") if each.is_file() and not each.is_symlink())
    control = tree / "DEBIAN"
    control.mkdir()
    control.chmod(0o755)  # mkdir obeys the umask
    (control / "control").write_text((DEPLOY / "debian/control").read_text().format(**texts))
    names = [str(each.relative_to(tree)) for each in files]
    (control / "conffiles").write_text(
        "".join(f"/{name}\n" for name in names if name.startswith("etc/"))
    )
    (control / "md5sums").write_text(
        "".join(
            f"{hashlib.md5(file.read_bytes()).hexdigest()}  {name}\n"
            for file, name in zip(files, names, strict=True)
        )
    )
    for name in ("preinst", "postinst", "prerm", "postrm"):
        shutil.copyfile(DEPLOY / "debian" / name, control / name)
        (control / name).chmod(0o755)
    for name in ("control", "conffiles", "md5sums"):
        (control / name).chmod(0o644)


if __name__ == "__main__":
    sys.exit(main())
