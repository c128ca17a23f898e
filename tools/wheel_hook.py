"""Hatchling's hook for wheels: adds the compiled core if HANSA_COMPILED_BUILD names its build.

`./run package` sets the variable for the wheel of this platform. Without it the wheel is pure, so
`pip install` of a source tree needs no compiler.
"""

import os
import platform
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "HANSA_COMPILED_BUILD"


class CompiledCoreHook(BuildHookInterface[Any]):
    """Puts a build where `hansa.compiled_core` looks for it in an installed package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build = os.environ.get(VARIABLE)
        if not build:
            return
        build_data["force_include"][build] = f"hansa/_compiled/{Path(build).name}"
        build_data["pure_python"] = False
        build_data["tag"] = platform_tag()


def platform_tag() -> str:
    """Return the tag of a wheel for this Python and this or a newer C library."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    system = sysconfig.get_platform()  # linux-x86_64, macosx-11.0-arm64
    library, number = platform.libc_ver()
    if library == "glibc":
        system = system.replace("linux", f"manylinux_{number}")
    return f"{python}-{python}-{re.sub('[.-]', '_', system)}"
