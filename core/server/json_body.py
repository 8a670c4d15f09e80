"""The body of a request: read within limits, then JSON within limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from .api_errors import ApiError
from .request_bodies import Body
from .request_decoding import decode
from .settings import ServerSettings

_MAX_DEPTH: Final = 100  # of nested arrays and objects
_LARGE: Final = 1 << 14
_decoder: Final = msgspec.json.Decoder()
T = TypeVar("T")
B = TypeVar("B", bound=Body)


async def read_object(request: Request, settings: ServerSettings, kind: type[B]) -> B:
    """Any content type will do: clients forget to say it."""
    raw = await read_body(request, settings)
    return await aside(len(raw), lambda: decode(kind, parse_object(raw), len(raw)))


async def aside(size: int, job: Callable[[], T]) -> T:
    """Beside the loop if so many bytes or characters take long: everybody else waits for it."""
    return job() if size < _LARGE else await asyncio.to_thread(job)


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > settings.max_body:
        raise _too_large(settings)
    parts, size = [], 0
    try:
        async with asyncio.timeout(settings.io_s):
            async for part in request.stream():
                size += len(part)
                if size > settings.max_body:
                    raise _too_large(settings)
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {settings.io_s:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "the client left before the body was complete") from None
    return b"".join(parts)


def parse_object(raw: bytes) -> dict[str, Any]:
    if not raw.strip():
        raise ApiError(400, "the body is empty, but a JSON object is expected")
    try:
        value = _decoder.decode(raw)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    check_depth(value)
    return value


def check_depth(value: object) -> None:
    """What goes on recursively with it must not run out of stack."""
    level: list[object] = [value]
    for _ in range(_MAX_DEPTH):
        inside: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inside += [item for item in each.values() if isinstance(item, (dict, list))]
            elif isinstance(each, list):
                inside += [item for item in each if isinstance(item, (dict, list))]
        if not inside:
            return
        level = inside
    raise _too_deep()


def _too_deep() -> ApiError:
    return ApiError(400, f"the body nests deeper than {_MAX_DEPTH} levels")


def _too_large(settings: ServerSettings) -> ApiError:
    return ApiError(413, f"the body is larger than {settings.max_body} bytes")
