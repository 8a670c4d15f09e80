"""Errors of requests: a status and an error object, no traceback."""

from __future__ import annotations

from typing import Any, Final

from ..errors import ConfigError, InputError, NextnError, TemplateError

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
        """In the form of the API that the path is of: Ollama's, or everyone else's."""
        return {"error": self.message} if path.startswith("/api/") else self.body

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


class EngineError(NextnError):
    """A step of the engine failed; its requests end with this error."""


class UnavailableError(NextnError):
    """The server is going down, or the request waited too long."""


def not_supported(what: str) -> ApiError:
    return ApiError(501, f"{what} is not supported by this server")


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
            return ApiError(503, str(error), retry_after=1)
        case NextnError():
            return ApiError(500, str(error))
    return ApiError(500, f"internal error: {type(error).__name__}")


def field_names(message: str) -> str:
    """The core names parameters as flags, with dashes; requests have underscores."""
    name, _, rest = message.partition(" ")
    return f"{name.replace('-', '_')} {rest}" if name.islower() and "-" in name else message
