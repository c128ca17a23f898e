"""The file behind `file:PATH`: the links of a real network.

Two formats: JSON `{"links": [[0, 1], …]}`, or one link per line, `0-1` or `paris london`, with
comments after `#`. Nodes are numbers or names. Names must not contain characters with a meaning in
actions: `cut paris-london`, `silence paris>london`, `partition paris,oslo|london`, `paris:a/b`.
Every error names the place and the remedy.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from hansa.errors import UsageError

FILE_CHARS_MAX = 16_000_000
"""Largest file in characters: more than the largest topology needs."""

FORBIDDEN_IN_NAMES = frozenset("-:,|>")

NamedLink = tuple[str, str]
"""The two ends of a link, as written."""


def read_links(path: Path) -> list[NamedLink]:
    """Return the links of a file, in its order."""
    text = _read_text(path)
    ends = _parse_json(path, text) if text.lstrip()[:1] in ("{", "[") else _parse_lines(path, text)
    if not ends:
        raise UsageError(f'{path}: no links; write {{"links": [[0, 1]]}} or lines like 0-1')
    for a, b in ends:
        if a == b:
            raise UsageError(f"{path}: {a}-{b} links a node to itself; remove that link")
    return ends


def number_nodes(path: str, ends: Sequence[NamedLink]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return names by number, if there are names, and numbers by name.

    Names are numbered in order of appearance. Numbers stay unchanged.
    """
    names = list(dict.fromkeys(end for link in ends for end in link))
    if not all(_is_number(name) for name in names):
        return tuple(names), {name: number for number, name in enumerate(names)}
    used = {int(name) for name in names}
    missing = next(number for number in range(len(used) + 1) if number not in used)
    if missing < len(used):
        hint = "number the nodes from 0 without holes, or use names"
        raise UsageError(f"{path}: there is a node {max(used)} but no node {missing}; {hint}")
    return (), {name: int(name) for name in names}


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10 and str(int(name)) == name


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(FILE_CHARS_MAX + 1)
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise UsageError(f"cannot read {path}: {reason}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file") from None
    if len(text) > FILE_CHARS_MAX:
        raise UsageError(f"{path} has more than {FILE_CHARS_MAX} characters")
    return text


def _parse_json(path: Path, text: str) -> list[NamedLink]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"{path} is not JSON: {problem}") from None
    links = content.get("links") if isinstance(content, dict) else None
    if not isinstance(links, list):
        raise UsageError(f'{path}: write an object with "links", as in {{"links": [[0, 1]]}}')
    return [_parse_json_link(path, link) for link in links]


def _parse_json_link(path: Path, link: object) -> NamedLink:
    match link:
        case [int() | str() as a, int() | str() as b] if _is_name(str(a)) and _is_name(str(b)):
            return str(a), str(b)
        case _:
            shown = json.dumps(link)[:60]
            raise UsageError(
                f"{path}: {shown} is no link; write two numbers or names, as in [0, 1],"
                " without blanks and - : , | >"
            )


def _is_name(text: str) -> bool:
    return text.split() == [text] and FORBIDDEN_IN_NAMES.isdisjoint(text)


def _parse_lines(path: Path, text: str) -> list[NamedLink]:
    found: list[NamedLink] = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        words = content.split()
        match words if len(words) != 1 else content.split("-"):
            case []:
                continue
            case [a, b] if _is_name(a) and _is_name(b):
                found.append((a, b))
            case _:
                raise UsageError(
                    f"{path} line {number}: {content[:60]!r} is no link; write two numbers or"
                    " names, as in 0-1 or paris london, without - : , | >"
                )
    return found
