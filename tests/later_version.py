"""A later version of this source tree, for tests of upgrades."""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parent.parent
LATER = "0.3.0.dev1"
FOLDERS = ("src", "deploy", "docs", "requirements", "tools")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE")


def copy_later_version(directory: Path, protocol_version: int | None = None) -> Path:
    """Copy everything that packages are made of, with a later version and, if one is given, another
    version of the protocol."""
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, directory / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, directory)
    package = directory / "src" / "hansa"
    _change(package / "__init__.py", r'__version__ = ".*"', f'__version__ = "{LATER}"')
    if protocol_version is not None:
        new = f"PROTOCOL_VERSION = {protocol_version}"
        _change(package / "protocol" / "wire" / "frames.py", r"^PROTOCOL_VERSION = \d+$", new)
    return directory


def _change(file: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, file.read_text(), flags=re.M)
    assert count == 1, file
    file.write_text(text)
