"""The web page that every agent serves at `/`: the federation as that agent knows it.

Plain HTML, CSS and JavaScript modules without a build step or libraries. While the page is visible
it follows `/stream`, with the documents of the chosen view only; it asks for `/status`, `/nodes`,
`/trace`, `/retained`, `/proposals` and `/tail` when somebody looks at them. After a
confirmation it changes links that the manager proposes, or publishes the message of a real trace.
It loads nothing from other hosts; a header forbids it.
"""

from pathlib import Path

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_TYPES = {
    "index.html": "text/html",
    "style.css": "text/css",
    "app.js": "text/javascript",
    "format.js": "text/javascript",
    "graph.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "model.js": "text/javascript",
    "proposals.js": "text/javascript",
    "real_trace.js": "text/javascript",
    "stream.js": "text/javascript",
    "tail.js": "text/javascript",
    "topics.js": "text/javascript",
    "views.js": "text/javascript",
}


def load_assets() -> dict[str, tuple[str, str]]:
    """Return text and content type of each file by its path in URLs."""
    folder = Path(__file__).parent  # importlib.resources takes half a megabyte
    return {
        "/" if name == "index.html" else f"/console/{name}": (
            (folder / name).read_text(encoding="utf-8"),
            content_type,
        )
        for name, content_type in _TYPES.items()
    }
