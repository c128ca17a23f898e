"""The web page that every agent serves at `/`: the federation as that agent knows it.

Plain HTML, CSS and JavaScript modules without a build step or libraries. The page reads `/overview`
once a second while it is visible, and `/status` when topics are looked at. It changes nothing and
loads nothing from other hosts; a header forbids it.
"""

from importlib.resources import files

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
    "views.js": "text/javascript",
}


def load_assets() -> dict[str, tuple[str, str]]:
    """Return text and content type of each file by its path in URLs."""
    folder = files(__name__)
    return {
        "/" if name == "index.html" else f"/console/{name}": (
            (folder / name).read_text(encoding="utf-8"),
            content_type,
        )
        for name, content_type in _TYPES.items()
    }
