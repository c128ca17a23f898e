"""The page /docs: the OpenAPI document as one HTML file without scripts.

FastAPI's own page loads Swagger UI from another host, which is unreachable from a closed network.
This page loads nothing; its Content-Security-Policy forbids it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy of the page."""

METHODS = ("get", "post", "put", "patch", "delete")

BOUNDS = {
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "up to {}",
    "exclusiveMaximum": "below {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}
"""Texts for the limits of a value, by keyword of OpenAPI."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem .8rem; overflow-x: auto; border-radius: 6px; }
section, details { border: 1px solid var(--line); border-radius: 8px; margin: .8rem 0;
                   padding: 0 1rem; }
summary { cursor: pointer; padding: .6rem 0; }
b.method { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
         border-top: 1px solid var(--line); }
"""


def render(document: Mapping[str, Any], meanings: Mapping[str, str]) -> str:
    """Return the page for an OpenAPI document; `meanings` explains its patterns."""
    page = _Page(document, meanings)
    info = document["info"]
    title = f"{info['title']} {info['version']}"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(info.get('description', ''))} For programs:"
        ' <a href="openapi.json">openapi.json</a>.</p>',
        *page.groups(),
        "<h2>Types</h2>",
        *page.types(),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


class _Page:
    def __init__(self, document: Mapping[str, Any], meanings: Mapping[str, str]) -> None:
        self._paths = document["paths"]
        self._types: Mapping[str, Any] = document.get("components", {}).get("schemas", {})
        self._tags = {tag["name"]: tag.get("description", "") for tag in document.get("tags", ())}
        self._meanings = meanings

    def groups(self) -> Iterator[str]:
        """Yield all requests by tag."""
        for tag, description in self._tags.items():
            yield f"<h2>{escape(tag)}</h2><p>{escape(description)}</p>"
            for path, methods in self._paths.items():
                for method in METHODS:
                    if method in methods and tag in methods[method].get("tags", ()):
                        yield from self._request(path, method, methods[method])

    def _request(self, path: str, method: str, request: Mapping[str, Any]) -> Iterator[str]:
        anchor = escape(f"{method}-{path}")
        yield (
            f'<details id="{anchor}"><summary><b class="method">{method.upper()}</b>'
            f" <code>{escape(path)}</code> {escape(request.get('description', ''))}</summary>"
        )
        rows = [
            (f"{each['name']} ({each['in']})", each["schema"], each.get("description", ""),
             each.get("required", False))
            for each in request.get("parameters", ())
        ]  # fmt: skip
        if rows:
            yield self._table(rows)
        body = _json_schema(request.get("requestBody", {}))
        if body is not None:
            yield f"<p>Body: {self._type(body)}</p>"
        for status, answer in request.get("responses", {}).items():
            if status.startswith("2"):
                schema = _json_schema(answer)
                text = self._type(schema) if schema else escape(answer.get("description", ""))
                yield f"<p>Response {escape(status)}: {text}</p>"
        yield f"<pre>{escape(self._curl(path, method, body))}</pre></details>"

    def types(self) -> Iterator[str]:
        """Yield the types of requests and responses."""
        for name, schema in self._types.items():
            required = schema.get("required", ())
            rows = [
                (field, each, each.get("description", ""), field in required)
                for field, each in schema.get("properties", {}).items()
            ]
            text = escape(schema.get("description", ""))
            yield f'<section id="type-{escape(name)}"><h3>{escape(name)}</h3><p>{text}</p>'
            yield f"{self._table(rows)}</section>"

    def _table(self, rows: list[tuple[str, Mapping[str, Any], str, bool]]) -> str:
        lines = [
            f"<tr><td><code>{escape(name)}</code></td><td>{self._type(schema)}</td>"
            f"<td>{'required' if required else _default(schema)}</td><td>{escape(text)}</td></tr>"
            for name, schema, text, required in rows
        ]
        return f"<table>{''.join(lines)}</table>"

    def _type(self, schema: Mapping[str, Any]) -> str:
        """Return the type of a value as HTML."""
        if "$ref" in schema:
            name = escape(schema["$ref"].rsplit("/", 1)[1])
            return f'<a href="#type-{name}">{name}</a>'
        if "anyOf" in schema:
            return " or ".join(self._type(each) for each in schema["anyOf"])
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
        kind = escape(str(schema.get("type", "any value")))
        if "items" in schema:
            kind = f"list of {self._type(schema['items'])}"
        bounds = [text.format(schema[name]) for name, text in BOUNDS.items() if name in schema]
        if meaning := self._meanings.get(schema.get("pattern", "")):
            bounds.append(meaning)
        return f"{kind} ({escape(', '.join(bounds))})" if bounds else kind

    def _curl(self, path: str, method: str, body: Mapping[str, Any] | None) -> str:
        """Return the request as a curl command."""
        words = ["curl"]
        if method != "get":
            words += ["-X", method.upper()]
        words += ["-H", '"Authorization: Bearer $HANSA_MANAGER_TOKEN"']
        if body is not None:
            example = {name: _example(each) for name, each in self._required(body).items()}
            words += ["-H", "'Content-Type: application/json'", "-d", f"'{json.dumps(example)}'"]
        place = re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), path)
        return " ".join([*words, f"http://127.0.0.1:8080{place}"])

    def _required(self, schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        found = self._types.get(schema.get("$ref", "").rsplit("/", 1)[-1], schema)
        properties = found.get("properties", {})
        return {name: properties[name] for name in found.get("required", ())}


def _json_schema(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schema: Mapping[str, Any] | None = (
        part.get("content", {}).get("application/json", {}).get("schema")
    )
    return schema


def _default(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    return f"default <code>{escape(json.dumps(value))}</code>" if value not in (None, "") else ""


def _example(schema: Mapping[str, Any]) -> Any:
    kinds: dict[str, Any] = {"boolean": True, "integer": 1, "number": 1, "array": []}
    return kinds.get(schema.get("type", ""), "…")
