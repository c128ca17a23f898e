"""Loads the compiled core: extension modules that mypyc made of the sources below.

A build is a directory whose name begins with the digest of the sources that it was made from:

    hansa_core__mypyc.SUFFIX    the code of all compiled modules
    hansa.protocol.SUFFIX       the entry points of the compiled modules of one package
    modules                     the names of all compiled modules, one per line

`import hansa` looks for the build of the sources that are there. If there is one, its modules take
the place of their sources; otherwise, and with HANSA_PURE=1, Python interprets the sources. An
edited source changes the digest, so an outdated build is never loaded.

`./run` makes builds in a checkout (`tools/compile_core.py`). The wheel for a platform and the
Debian package contain the build that they were made with; the pure wheel contains none.
"""

import hashlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PURE = "HANSA_PURE"
"""Environment variable: any value but the empty one makes Python interpret all sources."""

PACKAGE = Path(__file__).parent
PLACES = (PACKAGE / "_compiled", PACKAGE.parent.parent / ".build")
"""Where builds are: in an installed package, and in a checkout, where `./run` puts them."""

COMPILED = (
    *("delivery", "mqtt", "protocol", "simulator/broker", "simulator/world"),
    *("agent/broker/client.py", "agent/broker/connection.py", "agent/deadline_timer.py"),
    *("agent/driver.py", "agent/links/budget.py", "agent/links/fragments.py"),
    *("agent/links/peer_guard.py", "agent/links/stream.py", "agent/links/tls.py"),
    *("agent/sockets.py", "agent/token_bucket.py"),
)
"""Modules to compile, and folders of them."""

IMPORTED = (
    "errors.py",
    "agent/alarms.py",
    "agent/audit_log.py",
    "agent/broker/access.py",
    "agent/error_text.py",
    "agent/links/admission.py",
    "agent/links/link.py",
    "agent/links/security.py",
    "agent/links/settings.py",
    "agent/links/strikes.py",
    "agent/quarantine.py",
    "agent/recorded_topics.py",
    "agent/storage/state_directory.py",
    "agent/tasks.py",
    "agent/telemetry/sampler.py",
    "identity/authority.py",
    "identity/certificates.py",
    "identity/credentials.py",
    "identity/key_exchange.py",
    "identity/keys.py",
    "identity/revocation.py",
    "identity/tls.py",
    "journal/active_segment.py",
    "journal/crash.py",
    "journal/disk.py",
    "journal/durable_mark.py",
    "journal/index.py",
    "journal/reader.py",
    "journal/recovery.py",
    "journal/retention.py",
    "journal/segment.py",
    "journal/writer.py",
    "telemetry/event_mapper.py",
    "telemetry/schema.py",
    "telemetry/writer.py",
    *("journal/records.py", "journal/settings.py"),
    *("simulator/actions.py", "simulator/link_file.py", "simulator/options.py"),
    *("simulator/result.py", "simulator/topologies.py"),
    *("topology/former_addresses.py", "topology/graph.py", "topology/healing.py"),
    *("topology/neighbour_selector.py", "topology/planner.py"),
)
"""Sources that compiled modules import, directly or not, and that stay interpreted. The compiler
relies on their types, so they belong to the digest."""

LIBRARY = "hansa_core__mypyc"
SUFFIX = EXTENSION_SUFFIXES[0]
DIGEST_LENGTH = 20


def source_files() -> Iterator[Path]:
    """Yield all sources that a build depends on."""
    for name in IMPORTED:
        yield PACKAGE / name
    for name in COMPILED:
        path = PACKAGE / name
        yield from [path] if path.suffix else sorted(path.rglob("*.py"))


def core_digest() -> str:
    """Return the digest of the sources, for the binary interface of this Python: the suffix of
    extension modules names it."""
    digest = hashlib.sha256(SUFFIX.encode())
    for path in source_files():
        content = path.read_bytes()
        digest.update(f"\n{path.relative_to(PACKAGE)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:DIGEST_LENGTH]


class CompiledFinder:
    """Finds the modules of one build."""

    def __init__(self, build: Path) -> None:
        self._build = build
        self._modules = frozenset((build / "modules").read_text().split())

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == LIBRARY:
            file = name
        elif name in self._modules:
            file = name.rpartition(".")[0]
        else:
            return None
        place = str(self._build / f"{file}{SUFFIX}")
        return spec_from_file_location(name, place, loader=ExtensionFileLoader(name, place))


def find_build() -> Path | None:
    """Return the newest build of the present sources in the first place that has one."""
    places = [place for place in PLACES if place.is_dir()]
    pattern = f"{core_digest()}-*" if places else ""
    for place in places:
        if builds := list(place.glob(pattern)):
            return max(builds, key=lambda build: (build.stat().st_mtime, build.name))
    return None


def enable() -> None:
    """Let the compiled modules take the place of their sources, if there is a build. One that is
    damaged must not stop any command."""
    if os.environ.get(PURE) or not (build := find_build()):
        return
    try:
        sys.meta_path.insert(0, CompiledFinder(build))
        importlib.import_module(LIBRARY)
    except (ImportError, OSError) as fault:
        disable()
        sys.stderr.write(
            f"hansa: the compiled core cannot be loaded, so Python interprets it ({fault});"
            f" to build it again, remove {build}\n"
        )


def disable() -> None:
    """Interpret all modules that are not yet imported."""
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, CompiledFinder)]


def is_enabled() -> bool:
    return any(isinstance(each, CompiledFinder) for each in sys.meta_path)


def is_compiled(module: str) -> bool:
    """Whether an imported module is compiled."""
    found = sys.modules.get(module)
    spec = found.__spec__ if found else None
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)
