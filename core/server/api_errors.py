"""Errors of requests: a status and an error object, no traceback."""

from __future__ import annotations

from typing import Any, Final

from ..errors import (
    ConfigError,
    InputError,
    NextnError,
    TemplateError,
    UnavailableError,
    field_names,
)

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    431: "invalid_request_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_ANTHROPIC: Final = "/v1/messages"
# Where its word is another one.
_ANTHROPIC_KINDS: Final = {
    400: "invalid_request_error",
    413: "request_too_large",
    500: "api_error",
    501: "api_error",
    503: "overloaded_error",
}
EXCEEDS: Final = "exceed_context_size_error"
_MAX_MESSAGE: Final = 1000  # characters: messages quote what was sent


class ApiError(Exception):
    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        retry_after: int | None = None,
        **more: Any,
    ) -> None:
        """`param`: the field of the request that is at fault; `more` goes into the object."""
        super().__init__(message)
        self.status, self.message, self.param = status, message[:_MAX_MESSAGE], param
        self.kind = kind or _KINDS.get(status, "server_error")
        self.retry_after, self.more = retry_after, more

    @property
    def body(self) -> dict[str, Any]:
        error = {
            "code": self.status,
            "message": self.message,
            "type": self.kind,
            "param": self.param,
        }
        return {"error": error | self.more}

    def body_for(self, path: str) -> dict[str, Any]:
        """In the form of the API that the path is of: Ollama's, Anthropic's, or that of others."""
        if path.startswith("/api/"):
            return {"error": self.message}
        return self.anthropic_body if path.startswith(_ANTHROPIC) else self.body

    @property
    def anthropic_body(self) -> dict[str, Any]:
        kind = _ANTHROPIC_KINDS.get(self.status, self.kind)
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def not_supported(what: str) -> ApiError:
    """Of all requests to a path."""
    return ApiError(501, f"{what} is not supported by this server")


def unsupported_content(what: str) -> ApiError:
    """Of one request: clients repeat what got a status of 500 or more."""
    return ApiError(400, f"{what} is not supported by this server")


def headers_too_large(limit: int) -> ApiError:
    return ApiError(431, f"the headers are larger than {limit} bytes")


def api_error(error: BaseException) -> ApiError:
    """Returns the error of a response for an error that the core raised."""
    match error:
        case ApiError():
            return error
        case ConfigError() | InputError() | TemplateError():
            return ApiError(400, field_names(str(error)))
        case UnavailableError():
            return ApiError(503, str(error), retry_after=error.retry_after)
        case NextnError():
            return ApiError(500, str(error))
    return ApiError(500, f"internal error: {type(error).__name__}")
