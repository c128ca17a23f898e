"""What is written about Hansa holds: references, links, the code map, names of files and functions.

`docs/reference/` is generated. After a change of settings or of a command line, write it anew with
`REWRITE=1 ./run test tests/test_docs.py` and read the difference.
"""

import ast
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path

import pytest

from hansa.agent.metrics import AGENT_METRICS, FEDERATOR_METRICS, MetricFamily
from hansa.cli import simulate
from hansa.cli.main import COMMANDS, HELP, main
from hansa.protocol.settings import PRESETS, ProtocolSettings
from hansa.telemetry import schema
from hansa.telemetry.columns import COLUMNS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "hansa"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
GENERATED = "Generated; `REWRITE=1 ./run test tests/test_docs.py` writes it anew."

FENCE = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", flags=re.MULTILINE)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def agrees(path: Path, text: str) -> bool:
    """Whether a generated page is as it must be; with REWRITE set, it is from now on."""
    if os.environ.get("REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path.exists() and read(path) == text


# ---------------------------------------------------------------- references


def texts_of(module: Path, record: str) -> dict[str, str]:
    """The texts below the fields of a class, by field."""
    tree = ast.parse(read(module)).body
    (found,) = [node for node in tree if isinstance(node, ast.ClassDef) and node.name == record]
    texts = {}
    for place, below in zip(found.body, found.body[1:], strict=False):
        match place, below:
            case ast.AnnAssign(target=ast.Name(field)), ast.Expr(ast.Constant(str(text))):
                texts[field] = " ".join(text.split())
    return texts


TEXTS = texts_of(PACKAGE / "protocol" / "settings.py", "ProtocolSettings")


def unit(value: object) -> str:
    match value:
        case bool():
            return "`true`, `false`"
        case Enum():
            return ", ".join(f"`{member.value}`" for member in type(value))
        case float():
            return "seconds"
        case int():
            return "count"
    return "text"


def shown(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
    return str(value)


def settings_page() -> Iterator[str]:
    default = ProtocolSettings()
    yield f"# Settings of the protocol\n\n{GENERATED} From `src/hansa/protocol/settings.py`.\n"
    yield "| setting | unit | default | what it does |\n|---|---|---|---|"
    for field in fields(default):
        value = getattr(default, field.name)
        yield f"| `{field.name}` | {unit(value)} | {shown(value)} | {TEXTS[field.name]} |"
    for preset, values in PRESETS.items():
        changed = [
            f"| `{field.name}` | {shown(there)} | {shown(here)} |"
            for field in fields(default)
            if (there := getattr(values, field.name)) != (here := getattr(default, field.name))
        ]
        if changed:
            yield f"\n## Preset `{preset}`\n\n| setting | value | default |\n|---|---|---|"
            yield from changed


def test_every_setting_is_explained():
    assert list(TEXTS) == [field.name for field in fields(ProtocolSettings)]


@pytest.mark.parametrize("setting", [f.name for f in fields(ProtocolSettings) if f.type is float])
def test_the_text_of_a_time_says_its_unit(setting):
    assert "seconds" in TEXTS[setting].lower()


def test_settings_that_all_must_share_are_those_marked_so():
    shared = [setting for setting, text in TEXTS.items() if text.startswith("Shared.")]
    agreed = re.findall(r"(\w+)=", ProtocolSettings().shared_settings_text())
    assert sorted(shared) == sorted([*agreed, "federation"])


def test_the_reference_of_settings_is_current():
    assert agrees(DOCS / "reference" / "settings.md", "\n".join(settings_page()) + "\n")


def test_the_reference_of_the_command_line_is_current(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    page = [f"# The command line\n\n{GENERATED}\n\n```text\n{HELP}```\n"]
    for command in COMMANDS:
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
        _, _, explained = capsys.readouterr().out.partition("\n\n")  # the usage repeats the options
        page.append(f"## hansa {command}\n\n```text\n{explained.rstrip()}\n```\n")
    assert agrees(DOCS / "reference" / "cli.md", "\n".join(page))


def records_page() -> Iterator[str]:
    yield f"# Telemetry records\n\n{GENERATED} From `src/hansa/telemetry/schema.py`.\n"
    yield "A record is a row with the key `node_id`, `incarnation`, `record_sequence`. Every row"
    yield "has these, `kind`, `time_ns` and the columns of its kind.\n"
    yield "| tag | kind | columns | meaning |\n|---|---|---|---|"
    for tag, kind in schema.RECORD_TYPES.items():
        columns = ", ".join(f"`{field}`" for field in kind.__struct_fields__[1:])
        text = " ".join(str(kind.__doc__).split())
        yield f"| {tag} | `{schema.KIND_NAMES[kind]}` | {columns} | {text} |"
    yield "\n| column | type | meaning |\n|---|---|---|"
    for column, (sort, text) in COLUMNS.items():
        yield f"| `{column}` | {sort} | {text} |"


def test_the_reference_of_records_is_current():
    assert agrees(DOCS / "reference" / "records.md", "\n".join(records_page()) + "\n")


def metrics_page() -> Iterator[str]:
    def table(metrics: tuple[MetricFamily, ...]) -> Iterator[str]:
        yield "| metric | type | labels | meaning |\n|---|---|---|---|"
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
            yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"

    yield f"# Metrics\n\n{GENERATED} From `src/hansa/agent/metrics.py`.\n"
    yield "Every sample also has the labels `node` (16 hexadecimal digits) and `node_name` of its"
    yield "agent. A metric without samples is left out of the page. Counters start at 0 with each"
    yield "start of the agent, those of a link with each new connection.\n"
    yield from table(AGENT_METRICS)
    yield '\n## An agent with `mode = "mqtt-fed"`\n'
    yield from table(FEDERATOR_METRICS)


def test_the_reference_of_metrics_is_current():
    assert agrees(DOCS / "reference" / "metrics.md", "\n".join(metrics_page()) + "\n")


# ---------------------------------------------------------------- links and names


def anchors(page: Path) -> list[str]:
    """What one can link to on a page, as GitHub names it."""
    headings = HEADING.findall(FENCE.sub("", read(page)))
    return [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page):
    links = LINK.findall(CODE.sub("", FENCE.sub("", read(page))))
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no {path}"
        assert not anchor or anchor in anchors(target), f"{link}: there is no such heading"


def is_there(text: str) -> bool:
    """Whether a path exists, and the test in it if one is named."""
    path, _, test = text.partition("::")
    found = list(ROOT.glob(path))
    return bool(found) and (not test or f"def {test}(" in read(found[0]))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_path_that_a_page_names_exists(page):
    named = CODE.findall(FENCE.sub("", read(page)))
    paths = [
        text for text in named if re.match(r"(src|tests|docs|bench|tools|requirements)/", text)
    ]
    assert [path for path in paths if not is_there(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_simulation_that_a_page_proposes_can_be_asked_for(page):
    for line in re.findall(r"^\./run hansa simulate (.*)$", read(page), flags=re.MULTILINE):
        simulate.make_parser().parse_args(shlex.split(line, comments=True))


def test_every_decision_is_listed_with_its_title():
    files = sorted(path for path in (DOCS / "decisions").glob("*.md") if path.name != "README.md")
    titles = [read(path).splitlines()[0].removeprefix("# ").split(" ", 1) for path in files]
    listed = re.findall(
        r"^- \[(\d+)\]\((\S+)\) (.+)$", read(DOCS / "decisions" / "README.md"), re.M
    )
    assert listed == [
        (number, path.name, title) for path, (number, title) in zip(files, titles, strict=True)
    ]


def test_the_reading_order_leads_to_every_page():
    linked = LINK.findall(read(DOCS / "README.md"))
    pages = [path.name for path in DOCS.glob("*.md") if path.name != "README.md"]
    assert [page for page in pages if page not in linked] == []


def test_every_how_to_is_listed():
    linked = LINK.findall(read(DOCS / "README.md"))
    pages = [f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md")]
    assert [page for page in pages if page not in linked] == []


def test_every_dependency_has_its_reason():
    project = tomllib.loads(read(ROOT / "pyproject.toml"))
    extras = project["project"]["optional-dependencies"].values()
    declared = [project["project"]["dependencies"], *extras, *project["dependency-groups"].values()]
    names = {re.split(r"[>=;]", text)[0] for texts in declared for text in texts}
    table = read(DOCS / "decisions" / "0005-dependencies.md")
    listed = {name for row in re.findall(r"^\| (.+?) \|", table, re.M) for name in row.split(", ")}
    assert names - listed == set()


# ---------------------------------------------------------------- the code


def code_map() -> Iterator[str]:
    """The modules in the code map: each line has names, two spaces, and what they are."""
    drawn = FENCE.findall(read(DOCS / "architecture.md").partition("## Code map")[2])[0]
    folders: dict[int, str] = {}
    for line in drawn.splitlines()[1:-1]:
        indent = len(line) - len(line.lstrip())
        folders = {at: folder for at, folder in folders.items() if at < indent}
        for word in re.split(r"  +", line.strip())[0].split(" · "):
            if word.endswith("/"):
                folders[indent] = word
            else:
                yield "".join(folders.values()) + word.removesuffix(".py")


def test_the_code_map_names_every_module_and_no_other():
    modules = {
        path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("[!_]*.py")
    }
    named = set(code_map())
    assert {"missing": sorted(modules - named), "gone": sorted(named - modules)} == {
        "missing": [],
        "gone": [],
    }


def definitions(folder: Path) -> list[tuple[str, ...]]:
    """Every class, function and attribute of a folder's modules: (module, class, method), …"""

    def inside(tree: ast.AST, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for node in ast.iter_child_nodes(tree):
            match node:
                case ast.ClassDef(name=defined) | ast.FunctionDef(name=defined):
                    yield (*path, defined)
                    yield from inside(node, (*path, defined))
                case ast.Assign(targets=[ast.Attribute(attr=set_here)]):
                    yield (*path, set_here)
                case ast.AnnAssign(target=ast.Attribute(attr=set_here)):
                    yield (*path, set_here)

    return [
        found
        for module in sorted(folder.rglob("*.py"))
        for found in inside(ast.parse(read(module)), (module.stem,))
    ]


def classes() -> dict[str, list[str]]:
    """The modules that define each class, by the name of the class."""
    found: dict[str, list[str]] = {}
    for module in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(read(module)).body:
            if isinstance(node, ast.ClassDef):
                place = module.relative_to(PACKAGE).with_suffix("").as_posix()
                found.setdefault(node.name, []).append(place)
    return found


def test_class_names_that_occur_twice_are_in_the_glossary():
    twice = {name: modules for name, modules in classes().items() if len(modules) > 1}
    table = read(DOCS / "glossary.md").partition("## Class names that occur twice")[2]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    assert {CODE.findall(row[0])[0]: CODE.findall(row[1]) for row in rows} == twice


def test_code_that_the_glossary_names_exists():
    modules = [path.with_suffix("").as_posix() for path in PACKAGE.rglob("*")]
    defined = {path[-1] for path in definitions(PACKAGE)} | set(classes()) | {"NodeId", "Unicast"}
    rows = [line.split(" | ") for line in read(DOCS / "glossary.md").splitlines()]
    named = [word for row in rows if len(row) == 3 for word in CODE.findall(row[2])]
    assert [
        word
        for word in named
        if word not in defined and not any(module.endswith(f"/{word}") for module in modules)
    ] == []


WALK = CODE.findall(read(DOCS / "walk-of-a-message.md"))


def test_the_walk_of_a_message_names_functions_that_exist():
    """`node.handle` may stand for node.Node.handle: parts can be left out, but not the last."""
    parts_of_it = ("protocol", "agent", "journal", "mqtt")
    known = [path for part in parts_of_it for path in definitions(PACKAGE / part)]
    words = [text.split(".") for text in WALK if re.fullmatch(r"[A-Za-z_][\w.]*", text)]
    names = [parts for parts in words if parts[-1] not in ("py", "txt", "md")]
    assert names
    for parts in names:
        ends = [path for path in known if path[-1] == parts[-1]]
        assert any(set(parts) <= set(path) for path in ends), ".".join(parts)


def test_the_walk_of_a_message_names_files_that_exist():
    files = [text for text in WALK if re.fullmatch(r"[\w/-]+\.(py|txt|md)", text)]
    transcripts = ROOT / "tests" / "protocol" / "transcripts"
    places = [PACKAGE, PACKAGE / "protocol", ROOT, transcripts]
    assert files
    assert [file for file in files if not any((place / file).exists() for place in places)] == []
