"""The page at `/`: static HTML, CSS and JavaScript, without a build and without other hosts."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from .api_errors import ApiError

FOLDER: Final = Path(__file__).with_name("ui")
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}
NAMES: Final = (
    "index.html",
    "style.css",
    "text.css",
    "answer.js",
    "api.js",
    "app.js",
    "attachments.js",
    "chat.js",
    "clipboard.js",
    "conversations.js",
    "drafting.js",
    "figures.js",
    "highlight.js",
    "inline.js",
    "lines.js",
    "markdown.js",
    "message.js",
    "models.js",
    "paper.js",
    "requests.js",
    "settings.js",
    "sidebar.js",
    "writing.js",
)
PATHS: Final = frozenset(("/", *(f"/ui/{name}" for name in NAMES)))  # they hold no secrets


async def index(_request: Request) -> Response:
    return _file("index.html")


async def part(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in NAMES:
        raise ApiError(404, f"there is no {request.url.path[:200]} here")
    return _file(name)


def _file(name: str) -> Response:
    return Response(
        _read(name),
        media_type=f"{_TYPES[Path(name).suffix]}; charset=utf-8",
        headers=dict(_HEADERS),
    )


@lru_cache(len(NAMES))
def _read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()
