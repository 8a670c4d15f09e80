"""The server's own state: health, models, properties, slots, metrics."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ..generation import GenerateParams, SourceStats
from ..tokenizer.built_in_templates import CHATML
from ..tokenizer.chat_template import spelling
from ..tokenizer.thinking import find_thinking_texts
from ..worker.jobs import Job
from ..worker.worker import READY, SLEEPING, unavailable
from . import ollama_models
from .api_errors import ApiError, not_supported
from .metrics import CONTENT_TYPE, exposition, server_exposition
from .native import settings_of
from .parsed_request import ParsedRequest
from .replies import JsonResponse
from .reply import find_call_style
from .request_images import MEDIA_MARKER
from .service import Service


async def health(request: Request) -> Response:
    worker = _service(request).worker
    if worker.state not in (READY, SLEEPING):
        raise unavailable(worker)
    return JsonResponse({"status": "ok"})


async def version(_request: Request) -> Response:
    return JsonResponse({"version": program_version()})


async def load(request: Request) -> Response:
    """Under vLLM's name: requests for texts that wait or are answered."""
    return JsonResponse({"server_load": len(_service(request).under_way)})


def remember(service: Service) -> None:
    """Keeps the answers that are given while the model is unloaded."""
    service.remembered.clear()
    name = service.model_name
    service.remembered.update(
        name=name,
        props=_props(service),
        model=described(service, service.settings.alias or (name,)),
        listed=ollama_models.listed(service),
    )


async def models(request: Request) -> Response:
    service = _service(request)
    names = service.settings.alias or (service.model_name,)
    found = [described(service, names)]
    can = ["completion"]
    if "image" in found[0]["architecture"]["input_modalities"]:
        can.append("multimodal")
    shown = [{"name": names[0], "model": names[0], "capabilities": can, "type": "model"}]
    return JsonResponse({"object": "list", "data": found, "models": shown})


async def model(request: Request) -> Response:
    service = _service(request)
    names = service.settings.alias or (service.model_name,)
    if request.path_params["name"] not in names:
        raise ApiError(404, f"there is no model {request.path_params['name']!r:.80}")
    return JsonResponse(described(service, names))


def described(service: Service, names: tuple[str, ...]) -> dict[str, Any]:
    if service.worker.state == SLEEPING and "model" in service.remembered:
        known: dict[str, Any] = service.remembered["model"]
        return known
    runtime = service.runtime
    hparams = runtime.model.hparams
    return {
        "id": names[0],
        "object": "model",
        "created": service.started_at,
        "owned_by": "nextn",
        "root": names[0],
        "parent": None,
        "max_model_len": service.n_ctx,
        "context_length": service.n_ctx,
        "aliases": list(names),
        "tags": list(service.settings.tags),
        "meta": {
            "vocab_type": runtime.tokenizer.model,
            "n_vocab": runtime.n_vocab,
            "n_ctx": service.n_ctx,
            "n_ctx_train": hparams.n_ctx_train,
            "n_embd": hparams.n_embd,
            "n_params": runtime.file.n_params,
            "size": runtime.file.n_bytes,
        },
        "architecture": {
            "input_modalities": ["text", *["image"] * sees(service)],
            "output_modalities": ["text"],
        },
    }


def sees(service: Service) -> bool:
    """Whether requests may have images."""
    return service.runtime.image_encoder is not None


async def props(request: Request) -> Response:
    service = _service(request)
    if service.worker.state == SLEEPING and "props" in service.remembered:
        return JsonResponse(service.remembered["props"] | {"is_sleeping": True})
    return JsonResponse(_props(service))


def _props(service: Service) -> dict[str, Any]:
    runtime, settings, template = service.runtime, service.settings, service.loaded.template
    tokenizer = service.tokenizer
    return {
        "default_generation_settings": {
            "id": 0,
            "n_ctx": service.n_ctx,
            "speculative": bool(runtime.spec_types),
            "is_processing": False,
            "params": settings_of(service, _usual(service)),
        },
        "total_slots": service.worker.n_slots,
        "model_alias": settings.alias[0] if settings.alias else "",
        "model_path": str(runtime.file.path),
        "modalities": {"vision": sees(service), "audio": False},
        "media_marker": MEDIA_MARKER,
        "endpoint_slots": settings.with_slots,
        "endpoint_props": settings.with_props,
        "endpoint_metrics": settings.with_metrics,
        "chat_template": template.source if template is not None else CHATML,
        "is_chat_model": template is not None and not settings.writes_text,
        "chat_template_caps": _caps(template.source if template is not None else CHATML),
        "bos_token": spelling(tokenizer, tokenizer.bos_id),
        "eos_token": spelling(tokenizer, tokenizer.eos_id),
        "speculative_types": list(runtime.spec_types),
        "drafters": _drafters(service),
        "build_info": f"nextn-{program_version()}",
        "is_sleeping": False,
        "cache": _cache(service),
    }


def _drafters(service: Service) -> list[dict[str, Any]]:
    """What drafts, from which file (empty: the model's own, or none), with what success so far, and
    why it is idle, if it is."""
    runtime, worker = service.runtime, service.worker
    files = {each.drafter: str(each.file.path) for each in runtime.draft_files}
    found = []
    for name in runtime.spec_types:
        counts = worker.totals.by_source.get(name, SourceStats())
        found.append(
            {
                "name": name,
                "file": files.get(name, ""),
                "draft_n": counts.drafted,
                "draft_n_accepted": counts.accepted,
                "idle": worker.idle_drafters.get(name, ""),
            }
        )
    return found


def _cache(service: Service) -> dict[str, int]:
    use = service.loaded.engine.store.cache_use
    return {
        "limit_bytes": use.limit,
        "used_bytes": use.n_bytes,
        "pages": use.n_pages,
        "states": use.n_states,
        "evicted": use.n_evicted,
    }


def _caps(template: str) -> dict[str, bool]:
    return {
        "supports_tools": find_call_style(template).is_native,
        "supports_tool_calls": find_call_style(template).is_native,
        "supports_system_role": "system" in template or "role" in template,
        "supports_thinking": find_thinking_texts(template) is not None,
    }


def _usual(service: Service) -> ParsedRequest:
    """A request with all defaults."""
    settings = service.settings
    seed = (1 << 32) - 1 if settings.seed is None else settings.seed
    sampling = replace(service.sampling, seed=seed)
    params = GenerateParams(
        sampling,
        max_tokens=settings.max_tokens,
        ignore_eos=settings.ignore_eos,
        grammar=settings.grammar,
        json_schema=settings.json_schema,
    )
    return ParsedRequest([], params)


async def tokenizer_info(request: Request) -> Response:
    """Under vLLM's name, in the words of `tokenizer_config.json`."""
    service = _service(request)
    tokenizer, template = service.tokenizer, service.loaded.template
    return JsonResponse(
        {
            "tokenizer_class": tokenizer.model,
            "pre_tokenizer": tokenizer.pre,
            "vocab_size": tokenizer.n_vocab,
            "model_max_length": service.n_ctx,
            "add_bos_token": tokenizer.add_bos,
            "add_eos_token": tokenizer.add_eos,
            "bos_token": spelling(tokenizer, tokenizer.bos_id),
            "eos_token": spelling(tokenizer, tokenizer.eos_id),
            "chat_template": template.source if template is not None else CHATML,
        }
    )


async def slots(request: Request) -> Response:
    service = _service(request)
    if not service.settings.with_slots:
        raise not_supported("/slots, which --no-slots has switched off,")
    worker = service.worker
    service.loaded  # noqa: B018 - refused while there are none
    busy = sum(job is not None for job in worker.slots)
    if request.query_params.get("fail_on_no_slot") and busy == worker.n_slots:
        raise ApiError(503, "no slot is free", retry_after=1)
    return JsonResponse([_slot(service, i, job) for i, job in enumerate(worker.slots)])


def _slot(service: Service, i: int, job: Job | None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": service.first_slot + i,
        "n_ctx": service.n_ctx,
        "speculative": bool(service.runtime.spec_types),
        "is_processing": job is not None,
    }
    sequence = job.sequence if job is not None else None
    if job is None or sequence is None:
        return shown
    stats = sequence.stats
    parsed = ParsedRequest([], job.params)
    return shown | {
        "id_task": sequence.id,
        "n_prompt_tokens": sequence.n_prompt,
        "n_prompt_tokens_cache": stats.cached_n,
        "params": settings_of(service, parsed),
        "next_token": [
            {
                "has_next_token": sequence.stop_reason is None,
                "has_new_line": job.has_new_line,
                "n_remain": sequence.n_missing,
                "n_decoded": len(sequence.tokens) - sequence.n_prompt,
            }
        ],
        "draft_n": stats.draft_n,
        "draft_n_accepted": stats.draft_n_accepted,
    }


async def metrics(request: Request) -> Response:
    service = _service(request)
    if not service.settings.with_metrics:
        raise not_supported("/metrics, which needs --metrics,")
    text = exposition(service.worker, service.model_name) + server_exposition(service.statuses)
    response = Response(text, media_type=CONTENT_TYPE)
    started = str(service.started_at).encode()
    response.raw_headers.append((b"Process-Start-Time-Unix", started))
    return response


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


@lru_cache(1)
def program_version() -> str:
    from importlib.metadata import version

    return version("nextn")
