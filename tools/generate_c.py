"""Translates Python sources to C with mypyc, for `tools.compile_core`.

    python -m tools.generate_c DIRECTORY SOURCE...

The last line of its output describes the extension modules to make: for each its name, its files
and the directories of headers.
"""

import json
import sys
from pathlib import Path

from mypyc.build import mypycify

from hansa.compiled_core import LIBRARY, PACKAGE

CONFIGURATION = PACKAGE.parent.parent / "pyproject.toml"


SLICE_LENGTH = "slice_len = endn - startn;"
CORRECT_SLICE_LENGTH = "slice_len = endn > startn ? endn - startn : 0;"


def correct_slices(target: Path) -> None:
    """Let a slice of bytes that ends before it starts be empty. In mypyc's runtime it raises
    SystemError, and packets of a hostile peer could cause it."""
    runtime = target / "bytes_ops.c"
    text = runtime.read_text()
    if SLICE_LENGTH not in text:
        sys.exit(f"error: {runtime.name} of mypyc has changed; see correct_slices")
    runtime.write_text(text.replace(SLICE_LENGTH, CORRECT_SLICE_LENGTH))


def main(target: str, *sources: str) -> None:
    extensions = mypycify(
        ["--config-file", str(CONFIGURATION), *sources],
        multi_file=True,  # the C compiler can use all cores
        target_dir=target,
        group_name=LIBRARY.removesuffix("__mypyc"),
    )
    correct_slices(Path(target))
    described = [(each.name, each.sources, each.include_dirs) for each in extensions]
    print(f"\n{json.dumps(described)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
