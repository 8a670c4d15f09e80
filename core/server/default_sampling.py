"""`POST /props`: sampling values of requests that do not say, changed while the server runs."""

from __future__ import annotations

from typing import Final

from msgspec.structs import fields
from starlette.requests import Request
from starlette.responses import Response

from ..sampling.params import SamplingParams
from .api_errors import not_supported
from .json_body import read_object
from .replies import JsonResponse
from .request_bodies import GenerationBody, PropsBody
from .request_decoding import decode, refuse
from .sampling_fields import read_sampling, with_names
from .service import Service

_FIELD: Final = "default_generation_settings"
_KNOWN: Final = frozenset(field.name for field in fields(SamplingParams)) - {"seed", "logit_bias"}


async def change(request: Request) -> Response:
    service: Service = request.app.state.service
    settings = service.settings
    if not settings.with_props:
        raise not_supported("POST /props, which needs --props,")
    body = await read_object(request, settings, PropsBody)
    for name in body.given:
        if name not in (_FIELD, "model"):
            refuse(name, f"cannot be changed: {_FIELD}.params can")
    given = (body.default_generation_settings or {}).get("params") or {}
    if not isinstance(given, dict):
        refuse(f"{_FIELD}.params", "must be an object")
    for name in given:
        if name not in _KNOWN:
            refuse(name, f"cannot be changed: {', '.join(sorted(_KNOWN))} can")
    values = decode(GenerationBody, given)
    service.changed_sampling = with_names(
        lambda: read_sampling(values, service.sampling, settings, service.tokenizer)
    )
    return JsonResponse({"success": True})
