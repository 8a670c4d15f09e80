"""`GET /lora-adapters`, and `POST`: the scales of requests that do not say."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .adapter_fields import LoraScale, read_scales
from .api_errors import ApiError
from .json_body import parse_object, read_body
from .replies import JsonResponse
from .service import Service

_FORM: Final = 'the body must be an array, as in [{"id": 0, "scale": 0.5}]'
_decoder: Final = msgspec.json.Decoder(list[LoraScale])


async def listed(request: Request) -> Response:
    service: Service = request.app.state.service
    adapters = service.runtime.model.adapters
    found: list[dict[str, Any]] = []
    for i, each in enumerate(adapters.adapters if adapters else ()):
        assert adapters is not None
        found.append(
            {
                "id": i,
                "path": each.path,
                "scale": adapters.scales[i],
                "task_name": each.task_name,
                "prompt_prefix": each.prompt_prefix,
            }
        )
    return JsonResponse(found)


async def change(request: Request) -> Response:
    """Of requests that begin from now on, and have no `lora` of their own."""
    service: Service = request.app.state.service
    raw = await read_body(request, service.settings)
    try:
        given = _decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise ApiError(400, f"{_FORM}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        parse_object(raw)  # says what is wrong with it
        raise ApiError(400, _FORM) from None
    adapters = service.runtime.model.adapters
    scales = read_scales(given, adapters)
    if adapters is not None and scales is not None:
        adapters.set_scales(scales)
        service.changed_scales = scales
    return JsonResponse({"success": True})
