"""JSON as a response, and exceptions as error objects."""

from __future__ import annotations

import logging
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from ..errors import NextnError
from .api_errors import ApiError, api_error
from .formats import encode
from .request_log import note_error

_log: Final = logging.getLogger(__name__)


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode(content)


def error_response(error: ApiError, scope: Scope) -> Response:
    note_error(scope, error)
    return JsonResponse(error.body_for(scope["path"]), error.status, error.headers)


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError | NextnError), "registered for these"
    return error_response(api_error(error), request.scope)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answers requests that the router refuses."""
    assert isinstance(error, HTTPException), "registered for it"
    message = {
        404: f"there is no {request.url.path[:200]} here",
        405: f"{request.url.path[:200]} does not take {request.method}",
    }.get(error.status_code, error.detail)
    response = error_response(ApiError(error.status_code, message), request.scope)
    response.headers.update(error.headers or {})
    return response


async def on_bug(request: Request, error: Exception) -> Response:
    _log.error("internal error, %s: %s", type(error).__name__, error)
    bug = ApiError(500, f"internal error: {type(error).__name__}")
    return error_response(bug, request.scope)
