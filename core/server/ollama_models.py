"""What Ollama's clients ask before they chat: versions, and lists of models."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ..tokenizer.thinking import find_thinking_texts
from ..worker.worker import SLEEPING
from .api_errors import ApiError
from .json_body import read_object
from .ollama import now
from .replies import JsonResponse
from .reply import find_call_style
from .request_bodies import OllamaBody
from .service import Service

VERSION: Final = "0.13.0"  # clients compare it: the API is that of this version
ROUTED: Final = "spec.routed"  # in the scope: one of several models was found by the name
_LATEST: Final = ":latest"
_LONGEST: Final = 64  # values of a list that are shown


async def version(_request: Request) -> Response:
    return JsonResponse({"version": VERSION})


async def tags(request: Request) -> Response:
    return JsonResponse({"models": [listed(_service(request))]})


async def running(request: Request) -> Response:
    """The models that are in memory."""
    service = _service(request)
    if service.worker.state == SLEEPING:
        return JsonResponse({"models": []})
    return JsonResponse({"models": [in_memory(service)]})


def in_memory(service: Service) -> dict[str, Any]:
    more = {
        "expires_at": "9999-12-31T23:59:59Z", "size_vram": 0, "context_length": service.n_ctx,
    }  # fmt: skip
    return listed(service) | more


async def show(request: Request) -> Response:
    service = _service(request)
    body = await read_object(request, service.settings, OllamaBody)
    name = (body.model or body.given.get("name") or "").removesuffix(_LATEST)
    if ROUTED not in request.scope and name not in (service.model_name, *service.settings.alias):
        raise ApiError(404, f"model '{name:.80}' not found")
    metadata, template = service.runtime.file.metadata, service.loaded.template
    source = template.source if template is not None else ""
    can = ["completion"]
    if find_call_style(source).is_native:
        can.append("tools")
    if find_thinking_texts(source) is not None:
        can.append("thinking")
    if service.runtime.image_encoder is not None:
        can.append("vision")
    return JsonResponse(
        {
            "modelfile": f"FROM {service.model_name}\n",
            "parameters": "",
            "template": source,
            "details": _details(service),
            "model_info": {key: _shown(metadata[key]) for key in metadata},
            "capabilities": can,
            "modified_at": _modified(service),
        }
    )


def listed(service: Service) -> dict[str, Any]:
    if service.worker.state == SLEEPING and "listed" in service.remembered:
        known: dict[str, Any] = service.remembered["listed"]
        return known
    name, size = service.model_name, service.runtime.file.n_bytes
    return {
        "name": name,
        "model": name,
        "modified_at": _modified(service),
        "size": size,
        "digest": _digest(name, size),
        "details": _details(service),
    }


def unopened(name: str, size: int) -> dict[str, Any]:
    """A model whose file has not been read."""
    details = {"parent_model": "", "format": "gguf", "family": "", "families": []}
    return {
        "name": name,
        "model": name,
        "modified_at": now(),
        "size": size,
        "digest": _digest(name, size),
        "details": details | {"parameter_size": "", "quantization_level": ""},
    }


def _digest(name: str, size: int) -> str:
    return hashlib.sha256(f"{name} {size}".encode()).hexdigest()


def _details(service: Service) -> dict[str, Any]:
    file = service.runtime.file
    n_params = file.n_params
    n_bytes: dict[str, int] = {}
    for tensor in file.tensors.values():
        n_bytes[tensor.format.name] = n_bytes.get(tensor.format.name, 0) + tensor.n_bytes
    architecture = file.metadata.architecture
    return {
        "parent_model": "",
        "format": "gguf",
        "family": architecture,
        "families": [architecture],
        "parameter_size": f"{n_params / 1e9:.1f}B" if n_params > 1e9 else f"{n_params / 1e6:.0f}M",
        "quantization_level": max(n_bytes, key=lambda name: n_bytes[name]),
    }


def _shown(value: Any) -> Any:
    """Long lists are left out, as Ollama does: they are vocabularies."""
    if isinstance(value, str | int | float | bool):
        return value
    if len(value) > _LONGEST:
        return None
    return value.tolist() if hasattr(value, "tolist") else list(value)


def _modified(service: Service) -> str:
    try:
        moment = service.runtime.file.path.stat().st_mtime
    except OSError:
        return now()
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found
