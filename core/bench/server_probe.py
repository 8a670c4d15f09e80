"""What a server is, and which requests it accepts; found once, before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigError
from .counters import Counters, read_counters
from .dialects import CHAT, COMPLETIONS, NATIVE, PATHS, Manner, Task, request_body
from .record import RunSettings
from .wire import HttpAnswer, ServerError, Wire

AUTO: Final = "auto"
APIS: Final = (AUTO, NATIVE, COMPLETIONS, CHAT)
OURS: Final = "nextn"  # as a kind of server
# `owned_by` of their models, and our names of them.
_OWNERS: Final = {
    "llamacpp": "llama.cpp",
    "nextn": OURS,
    "vllm": "vLLM",
    "sglang": "SGLang",
}
_PROBE_S: Final = 20.0  # for a request that needs no model
_POLL_S: Final = 0.25
_REFUSALS: Final = (400, 404, 405, 422, 501)  # of a request, not of the client
_TRIAL: Final = "1"  # a prompt of the trial requests


class MeasuredServer(Struct, frozen=True):
    """A server that answers."""

    kind: str
    model: str
    version: str
    manner: Manner  # of prompts that are texts
    chat: Manner | None  # of prompts that are turns; None: over its template and `manner`
    has_counters: bool
    n_slots: int | None
    served: Mapping[str, Any]  # further facts about its model
    can_chat: bool = True


def probe(wire: Wire, *, model: str = "", api: str = AUTO, extra: Mapping[str, Any] | None = None,
          wait_s: float = 300.0) -> MeasuredServer:  # fmt: skip
    """ConfigError for what the user can set right, ServerError for the rest."""
    if api not in APIS:
        raise ConfigError(f"--api is one of {', '.join(APIS)}, got {api!r}")
    wait_until_ready(wire, wait_s)
    listing = _listing(wire)
    entry = choose_model(listing, model, wire.address.shown)
    props = _object(wire.get("/props", seconds=_PROBE_S))
    owner = str(entry.get("owned_by", "")).lower()
    has_props = "default_generation_settings" in props or "total_slots" in props
    kind = _OWNERS.get(owner, "llama.cpp" if has_props else "OpenAI-compatible")
    base = Manner(
        COMPLETIONS, str(entry.get("id", model)), is_ours=kind == OURS, extra=dict(extra or {})
    )
    text, chat = _manners(wire, base, api, is_native=has_props)
    slots = props.get("total_slots")
    return MeasuredServer(
        kind=kind,
        model=base.model,
        version=_version(wire, props),
        manner=text,
        chat=chat,
        has_counters=counters_of(wire, base.model) is not None,
        n_slots=slots if isinstance(slots, int) else None,
        served=_served(entry, props),
        can_chat=(chat is not None and chat.api == CHAT) or bool(props.get("chat_template")),
    )


def wait_until_ready(
    wire: Wire, wait_s: float, is_alive: Callable[[], bool] = lambda: True
) -> None:
    """503 means that it is loading its model. Servers without /health answer 404, and are ready."""
    deadline = time.monotonic() + wait_s
    while True:
        answer = wire.get("/health", seconds=_PROBE_S)
        if answer.status != 503:
            return
        if time.monotonic() > deadline or not is_alive():
            raise wire.refused("/health", answer)
        time.sleep(_POLL_S)


def counters_of(wire: Wire, model: str) -> Counters | None:
    """None: it has none, or does not show them (llama.cpp needs --metrics)."""
    try:
        answer = wire.get("/metrics", seconds=_PROBE_S)
    except ServerError:
        return None
    return read_counters(answer.text, model) if answer.status == 200 else None


def choose_model(listing: list[dict[str, Any]], model: str, place: str) -> dict[str, Any]:
    names = [str(entry.get("id", "")) for entry in listing]
    if not model:
        return listing[0] if listing else {}
    for entry in listing:
        aliases = entry.get("aliases")
        if model == entry.get("id") or (isinstance(aliases, list) and model in aliases):
            return entry
    if listing:
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise ConfigError(f"{place} serves no model {model!r}; it has {shown}")
    return {"id": model}


def _listing(wire: Wire) -> list[dict[str, Any]]:
    answer = wire.get("/v1/models", seconds=_PROBE_S)
    if answer.status in (401, 403) or 300 <= answer.status < 400 or answer.status >= 500:
        raise wire.refused("/v1/models", answer)
    found = _object(answer).get("data")
    entries = found if isinstance(found, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]


def _manners(
    wire: Wire, base: Manner, api: str, *, is_native: bool
) -> tuple[Manner, Manner | None]:
    if api == CHAT:
        chat = _settled(wire, replace(base, api=CHAT))
        return chat, chat
    if api == NATIVE or (api == AUTO and is_native):
        return _settled(wire, replace(base, api=NATIVE)), None
    if api == COMPLETIONS:
        text = _settled(wire, base)
        return text, text
    chat = _settled(wire, replace(base, api=CHAT))
    try:
        return _settled(wire, base), chat
    except ServerError as error:
        if error.status not in _REFUSALS:
            raise
        return chat, chat


def _settled(wire: Wire, manner: Manner) -> Manner:
    """The richest request that it accepts, found with texts of one token."""
    plain = replace(manner, extends=False)
    tries = [manner, plain, replace(plain, limit_field="max_completion_tokens")]
    first: ServerError | None = None
    for each in tries[: 1 if manner.api == NATIVE else 2 if manner.api == COMPLETIONS else 3]:
        task = Task(1, RunSettings(), _TRIAL, [{"role": "user", "content": _TRIAL}], "trial")
        try:
            for _ in wire.stream(PATHS[each.api], request_body(each, task)):
                pass
        except ServerError as error:
            if error.status not in _REFUSALS:
                raise
            first = first or error
            continue
        return each
    assert first is not None
    raise first


def _version(wire: Wire, props: Mapping[str, Any]) -> str:
    build = props.get("build_info")
    if isinstance(build, str) and build:
        return build
    found = _object(wire.get("/version", seconds=_PROBE_S)).get("version")
    return found if isinstance(found, str) else ""


def _served(entry: Mapping[str, Any], props: Mapping[str, Any]) -> dict[str, Any]:
    meta = entry.get("meta")
    numbers = meta if isinstance(meta, dict) else {}
    found: dict[str, Any] = {
        name: numbers[name] for name in ("n_params", "size", "n_ctx", "ftype") if name in numbers
    }
    if isinstance(props.get("model_path"), str):
        found["model_path"] = PurePath(props["model_path"]).name
    if isinstance(entry.get("max_model_len"), int):
        found.setdefault("n_ctx", entry["max_model_len"])
    return found


def _object(answer: HttpAnswer) -> dict[str, Any]:
    found = answer.json() if answer.status == 200 else None
    return found if isinstance(found, dict) else {}
