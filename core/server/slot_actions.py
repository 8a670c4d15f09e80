"""`POST /slots/N?action=save|restore|erase`, as llama-server has it.

`save` writes what the prefix cache holds of the last sequence in a slot. `restore` puts it back
into the cache of the same model, where any request with the same beginning reuses it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ..errors import ConfigError, FileFormatError
from . import slot_files
from .api_errors import ApiError, not_supported
from .json_body import read_object
from .replies import JsonResponse
from .request_bodies import SlotFileBody
from .service import Service

if TYPE_CHECKING:
    from pathlib import Path

    from ..engine.engine import Engine

_BUSY: Final = object()
_LOOK_EVERY_S: Final = 0.02
_EXTRA: Final = 64 << 20  # bytes of a file besides the state: tokens, drafters' state


async def act(request: Request) -> Response:
    service: Service = request.app.state.service
    folder = service.settings.slot_folder
    if folder is None:
        raise not_supported("an action on slots, which needs --slot-save-path,")
    slot = _slot(request, service)
    match request.query_params.get("action"):
        case "save":
            return await _save(request, service, folder, slot)
        case "restore":
            return await _restore(request, service, folder, slot)
        case "erase":
            return await _erase(request, service, slot)
    raise ApiError(400, "Invalid action: it is one of save, restore, erase", param="action")


async def _save(request: Request, service: Service, folder: Path, slot: int) -> Response:
    name, worker = await _filename(request, service), service.worker
    began = time.perf_counter()
    await _when_free(request, service, slot, _nothing)
    async with service.slot_files:  # one at a time: each may take as much memory as a context
        found = await _when_free(
            request,
            service,
            slot,
            lambda engine: engine.save_prefix(worker.last_tokens(slot), worker.last_scales(slot)),
        )
        if found is None:
            raise ApiError(400, _nothing_there(slot, bool(worker.last_tokens(slot))))
        n_bytes = await asyncio.to_thread(lambda: slot_files.save(folder, name, found.joined()))
    return JsonResponse(
        {
            "id_slot": slot,
            "filename": name,
            "n_saved": found.last.n_cells,
            "n_written": n_bytes,
            "timings": {"save_ms": _ms_since(began)},
        }
    )


async def _restore(request: Request, service: Service, folder: Path, slot: int) -> Response:
    name, worker = await _filename(request, service), service.worker
    began = time.perf_counter()
    await _when_free(request, service, slot, _nothing)
    async with service.slot_files:
        max_bytes = 2 * service.loaded.engine.store.saved_bytes + _EXTRA
        given, n_bytes = await asyncio.to_thread(slot_files.load, folder, name, max_bytes)

        def restore(engine: Engine) -> int:
            try:
                n = engine.load_prefix(given)
            except (ConfigError, FileFormatError) as error:
                raise ApiError(400, f"{name}: {error}", param="filename") from None
            scales = engine.scales_of(given)
            worker.set_last_tokens(slot, given.last.tokens.tolist(), scales)
            return n

        n = await _when_free(request, service, slot, restore)
    if not n:
        raise ApiError(400, f"{name} does not fit into what --cache-ram allows", param="filename")
    return JsonResponse(
        {
            "id_slot": slot,
            "filename": name,
            "n_restored": n,
            "n_read": n_bytes,
            "timings": {"restore_ms": _ms_since(began)},
        }
    )


async def _erase(request: Request, service: Service, slot: int) -> Response:
    worker = service.worker

    def erase(engine: Engine) -> int:
        tokens, scales = worker.last_tokens(slot), worker.last_scales(slot)
        worker.set_last_tokens(slot, ())
        n = engine.store.left_of(tokens, scales).n_tokens
        engine.forget_prefix(tokens, scales)
        return n

    n = await _when_free(request, service, slot, erase)
    return JsonResponse({"id_slot": slot, "n_erased": n})


async def _when_free(
    request: Request, service: Service, slot: int, function: Callable[[Engine], Any]
) -> Any:
    """Waits until the slot is free; then returns the result of `function`, which runs between
    two steps."""
    worker = service.worker

    def run(engine: Engine) -> Any:
        return _BUSY if worker.slots[slot] is not None else function(engine)

    while (found := await worker.call(run)) is _BUSY:
        if await request.is_disconnected():
            raise ApiError(400, "the client left")
        await asyncio.sleep(_LOOK_EVERY_S)
    return found


def _nothing_there(slot: int, was_written: bool) -> str:
    if not was_written:
        return f"slot {slot} holds nothing that could be saved"
    return f"what slot {slot} held was dropped for newer sequences; give more --cache-ram"


def _nothing(_engine: Engine) -> None:
    pass


async def _filename(request: Request, service: Service) -> str:
    body = await read_object(request, service.settings, SlotFileBody)
    return slot_files.check_name(body.filename)


def _slot(request: Request, service: Service) -> int:
    text = request.path_params["id"]
    slot = int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else -1
    if not 0 <= slot < service.worker.n_slots:
        raise ApiError(400, "Invalid slot ID", param="id_slot")
    return slot


def _ms_since(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 3)
