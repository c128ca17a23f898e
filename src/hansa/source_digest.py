"""Identifies the code that made a result: a digest of its sources, and the commit.

Results of equal digests may be added up and continued, whatever else differs between two commits.
"""

import ast
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
DIGEST_LENGTH = 16
COMMIT_LENGTH = 10


@cache
def source_digest(*roots: str) -> str:
    """Return a digest of these modules of Hansa and of all its modules that they import, directly
    or not. Comments, docstrings and layout do not count; the version of Python does."""
    found: dict[Path, str] = {}
    waiting = list(roots)
    while waiting:
        for path in _files_of_module(waiting.pop()):
            if path not in found:
                tree = ast.parse(path.read_bytes())
                waiting += _imported_modules(tree)
                found[path] = _dump_code(tree)
    digest = hashlib.sha256()
    for path in sorted(found):
        digest.update(f"{path.relative_to(PACKAGE)} {found[path]}\n".encode())
    return digest.hexdigest()[:DIGEST_LENGTH]


def _files_of_module(name: str) -> Iterator[Path]:
    """Yield the file of a module and those of the packages that contain it. A name imported from a
    module yields the files of that module."""
    words = name.split(".")[1:]
    for count in range(len(words) + 1):
        place = PACKAGE.joinpath(*words[:count])
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                yield path


def _dump_code(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_text(each)]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, of a module, class, function or field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "hansa")


@cache
def source_commit() -> str | None:
    """Return the commit of this checkout, with `-dirty` if files differ; None outside a
    checkout."""
    if shutil.which("git") is None or _run_git("ls-files", "--error-unmatch", __file__) is None:
        return None
    return _run_git("describe", "--always", "--dirty", "--exclude=*", f"--abbrev={COMMIT_LENGTH}")


def _run_git(*words: str) -> str | None:
    done = subprocess.run(
        ["git", "-C", str(PACKAGE), *words], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None
