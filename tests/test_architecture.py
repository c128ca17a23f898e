"""Rules for the shape of the source tree: imports, formats, size, number of collaborators.

The lists of exceptions may shrink and must not grow: a new class or module obeys the limits, and an
exception must not get worse.
"""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "hansa"
TREES = {
    str(module.relative_to(PACKAGE)): ast.parse(module.read_text(encoding="utf-8"))
    for module in sorted(PACKAGE.rglob("*.py"))
}
TEST_TREES = {
    str(module.relative_to(ROOT)): ast.parse(module.read_text(encoding="utf-8"))
    for module in sorted((ROOT / "tests").rglob("*.py"))
}

FORMATS_THAT_RUN_CODE = {"dill", "marshal", "pickle", "shelve"}
NAMES_WITHOUT_MEANING = {"common.py", "helpers.py", "misc.py", "util.py", "utils.py"}

# docs/style.md, rule 16.
LINES_MAX = 600
IMPORTS_MAX = 20
ATTRIBUTES_MAX = 12

LARGE_MODULES: dict[str, int] = {
    "protocol/membership/overlay.py": 640,
    "protocol/node.py": 607,
}

MODULES_WITH_MANY_IMPORTS = {
    "agent/delivery/outbox_files.py": 21,
    "agent/delivery/service.py": 31,
    "agent/driver.py": 21,
    "agent/links/mqtt.py": 23,
    "agent/mqttfed/service.py": 34,
    "agent/service.py": 47,
    "agent/security.py": 22,
    "agent/settings.py": 24,
    "cli/ca.py": 22,
    "delivery/core.py": 22,
    "identity/enrolment.py": 22,
    "identity/renewal.py": 22,
    "manager/service.py": 23,
    "protocol/node.py": 30,
    "simulator/run.py": 21,
    "simulator/world/delivery.py": 24,
    "simulator/world/world.py": 24,
    "testbed/demo/report.py": 21,
}

CLASSES_WITH_MANY_ATTRIBUTES = {
    "agent/broker/connection.py:Connection": 17,
    "agent/broker/embedded.py:EmbeddedBroker": 13,
    "agent/broker/observer_client.py:ObserverClient": 20,
    "agent/driver.py:Driver": 21,
    "agent/links/mqtt.py:_DialledLink": 15,
    "agent/links/mqtt_stream.py:MqttStream": 14,
    "agent/links/security.py:LinkSecurity": 16,
    "agent/links/stream.py:StreamLink": 27,
    "agent/links/udp_link.py:UdpLink": 22,
    "agent/mqttfed/service.py:FedAgent": 13,
    "agent/service.py:Agent": 21,
    "agent/delivery/service.py:DeliveryService": 13,
    "delivery/core.py:DeliveryCore": 17,
    "delivery/subscriptions/table.py:SubscriptionTable": 14,
    "delivery/injection.py:Injection": 16,
    "identity/enrolment.py:Invitation": 13,
    "identity/renewal.py:Issuer": 14,
    "journal/writer.py:JournalWriter": 13,
    "observers/mosquitto/client_sessions.py:SessionTable": 16,
    "observers/mosquitto/history.py:Reading": 13,
    "protocol/delivery/outbox.py:Outbox": 13,
    "protocol/delivery/receiver_progress.py:ReceiverProgress": 13,
    "protocol/interest/local.py:LocalInterest": 14,
    "protocol/interest/remote.py:RemoteInterest": 13,
    "protocol/membership/graph.py:Graph": 14,
    "protocol/membership/overlay.py:Overlay": 15,
    "protocol/node.py:Node": 13,
    "protocol/retained/values.py:RetainedState": 18,
    "simulator/analysis/convergence.py:ConvergenceTracker": 15,
    "simulator/checkers/guarantees.py:GuaranteedDelivery": 18,
    "simulator/world/delivery.py:SimulatedDelivery": 15,
    "simulator/world/disk.py:SimulatedDisk": 15,
    "simulator/world/hooks.py:HookCallbacks": 13,
    "simulator/world/site.py:Site": 23,
    "simulator/world/world.py:World": 21,
    "testbed/federation.py:LocalFederation": 14,
}


RETIRED_WORDS = set(
    """absences acquaintance acquaintances chronicle crowding custody debt debts greeting hear
    keeping letter letters life lives memorise mould moulds news originality owed pulpit
    rests rivalry safekeeping solicit solicitation sure surely suspicion tell telling tells told
    wanted wants way ways witness""".split()
)
"""Words of version 0.1 that docs/glossary.md replaces, in names of code and tests. `one_way` and
`two_way` may stay."""


def imports(tree: ast.Module) -> set[str]:
    """Every module that a module imports, anywhere in it, by full name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def attributes(definition: ast.ClassDef) -> set[str]:
    """Every attribute that the constructor of a class assigns."""
    return {
        node.attr
        for method in definition.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def excess(sizes: dict[str, int], limit: int, exceptions: dict[str, int]) -> dict[str, str]:
    """What is larger than the limit, or than its exception; and exceptions that are not needed."""
    above = {
        name: f"has {size}, limit {exceptions.get(name, limit)}"
        for name, size in sizes.items()
        if size > exceptions.get(name, limit)
    }
    stale = {name: "delete this exception" for name in exceptions if sizes.get(name, 0) <= limit}
    return above | stale


def public_names(definition: ast.ClassDef) -> set[str]:
    """Every method, property and attribute of a class without an underscore."""
    methods = {node.name for node in definition.body if isinstance(node, ast.FunctionDef)}
    return {name for name in methods | attributes(definition) if not name.startswith("_")}


@pytest.fixture
def loggers() -> Iterator[None]:
    """Enable the loggers again that the linter disables when it configures logging for itself."""
    enabled = [each for each in _all_loggers() if not each.disabled]
    yield
    for each in enabled:
        each.disabled = False


def _all_loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [each for each in known if isinstance(each, logging.Logger)]


@pytest.mark.usefixtures("loggers")
def test_imports_only_go_down(capsys):
    status = lint_imports(str(ROOT / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == 0, capsys.readouterr().out


def test_no_module_reads_a_format_that_can_run_code():
    found = {
        module: {name.partition(".")[0] for name in imports(tree)} & FORMATS_THAT_RUN_CODE
        for module, tree in TREES.items()
    }
    assert {module: names for module, names in found.items() if names} == {}


def test_every_module_is_named_after_an_idea():
    assert [module for module in TREES if Path(module).name in NAMES_WITHOUT_MEANING] == []


def test_modules_are_of_readable_length():
    lines = {
        module: len((PACKAGE / module).read_text(encoding="utf-8").splitlines()) for module in TREES
    }
    assert excess(lines, LINES_MAX, LARGE_MODULES) == {}


def test_modules_have_few_collaborators():
    counts = {module: len(imports(tree)) for module, tree in TREES.items()}
    assert excess(counts, IMPORTS_MAX, MODULES_WITH_MANY_IMPORTS) == {}


def test_classes_have_few_attributes():
    counts = {
        f"{module}:{node.name}": len(attributes(node))
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    assert excess(counts, ATTRIBUTES_MAX, CLASSES_WITH_MANY_ATTRIBUTES) == {}


def test_public_names_of_a_node_are_the_documented_interface():
    (node,) = (
        each
        for each in TREES["protocol/node.py"].body
        if isinstance(each, ast.ClassDef) and each.name == "Node"
    )
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("### The interface of a node")[2].partition("\n#")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert public_names(node) == documented


def test_shells_use_only_public_names_of_a_node():
    found = {
        f"{module}:{access.lineno}"
        for module, tree in TREES.items()
        if not module.startswith(("protocol/", "simulator/byzantine/"))  # an attacker obeys nothing
        for access in ast.walk(tree)
        if isinstance(access, ast.Attribute) and access.attr.startswith("_")
        if isinstance(access.value, ast.Attribute | ast.Name)
        if (access.value.attr if isinstance(access.value, ast.Attribute) else access.value.id)
        == "node"
    }
    assert found == set()


def test_shells_import_no_part_of_a_node():
    """Outside of protocol/, modules import values and functions of it, and no stateful part."""
    calls = (each for each in ast.walk(TREES["protocol/node.py"]) if isinstance(each, ast.Call))
    called = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    stateful = {
        each.name
        for module, tree in TREES.items()
        if module.startswith("protocol/")
        for each in tree.body
        if isinstance(each, ast.ClassDef) and attributes(each)
    }
    parts = called & stateful - {"MembershipView"}
    assert {"DeliveryState", "ForwardingEngine", "Overlay", "RemoteInterest"} <= parts
    found = {
        f"{module}: {alias.name}"
        for module, tree in TREES.items()
        if not module.startswith("protocol/")
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom)
        if (statement.module or "").startswith("hansa.protocol")
        for alias in statement.names
        if alias.name in parts
    }
    assert found == set()


def test_views_of_a_node_change_nothing():
    for module in ("protocol/membership/view.py", "protocol/delivery/view.py"):
        (view,) = (each for each in TREES[module].body if isinstance(each, ast.ClassDef))
        methods = [each for each in view.body if isinstance(each, ast.FunctionDef)]
        for method in methods:
            if method.name != "__init__":
                statements = [each for each in method.body if not isinstance(each, ast.Expr)]
                assert [type(each) for each in statements] == [ast.Return], method.name


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Every name that a module gives to a class, function, parameter, variable or attribute."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def test_names_use_the_words_of_the_glossary():
    found: dict[str, set[str]] = {}
    for module, tree in (TREES | TEST_TREES).items():
        for name in defined_names(tree):
            words = re.findall(r"[A-Z]?[a-z]+", re.sub(r"(?i)(one|two|both)_?ways?", "", name))
            if RETIRED_WORDS & {word.lower() for word in words}:
                found.setdefault(module, set()).add(name)
    assert found == {}
