"""Drafters that files of other programs name for a model: of LM Studio and of Ollama."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

# LM Studio: <root>/models/PUBLISHER/MODEL/FILE.gguf, and settings of it in
_SETTINGS: Final = (".internal", "user-concrete-model-default-config")
_KEY: Final = "llm.load.llama.speculativeDecoding."
_OLDER_KEY: Final = "llm.prediction.speculativeDecoding.draftModel"
_FILES: Final = ("draftModel", "draftMtpSidecar", "draftDflashSidecar", "draftDsparkSidecar")
# Ollama: <root>/blobs/sha256-DIGEST, and <root>/manifests/... that say what belongs together.
_MODEL, _DRAFT = (f"application/vnd.ollama.image.{layer}" for layer in ("model", "draft"))
_MOST_BYTES: Final = 1 << 20  # of a file of theirs


def declared_drafters(model: Path) -> Iterator[Path]:
    """Files that are there; a file that cannot be read names none."""
    yield from _of_lm_studio(model)
    yield from _of_ollama(model)


def _of_lm_studio(model: Path) -> Iterator[Path]:
    parents = model.absolute().parents
    if len(parents) < 4 or parents[2].name != "models":
        return
    models = parents[2]
    settings = models.parent.joinpath(*_SETTINGS, *model.absolute().relative_to(models).parts)
    for name in _named_files(_read(settings.with_name(f"{settings.name}.json"))):
        path = models / name
        found = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
        if found and found[0].is_file():  # of a folder with shards, the first
            yield found[0]


def _named_files(settings: Any) -> Iterator[str]:
    wanted = {_OLDER_KEY, *(_KEY + name for name in _FILES)}
    for part in ("load", "operation"):
        for field in _list(_dict(_dict(settings).get(part)).get("fields")):
            value = _dict(field).get("value")
            if isinstance(value, dict):  # a switch beside the value
                value = value.get("value") if value.get("checked", True) else None
            if _dict(field).get("key") in wanted and isinstance(value, str) and value:
                yield value


def _of_ollama(model: Path) -> Iterator[Path]:
    blobs = model.absolute().parent
    if blobs.name != "blobs" or not model.name.startswith("sha256-"):
        return
    manifests = blobs.parent / "manifests"
    for path in sorted(manifests.rglob("*")) if manifests.is_dir() else ():
        layers = [_dict(layer) for layer in _list(_dict(_read(path)).get("layers"))]
        own = {_blob(layer) for layer in layers if layer.get("mediaType") == _MODEL}
        if model.name not in own:
            continue
        for layer in layers:
            draft = blobs / _blob(layer)
            if layer.get("mediaType") == _DRAFT and draft.is_file():
                yield draft


def _blob(layer: dict[str, Any]) -> str:
    return str(layer.get("digest", "")).replace(":", "-").replace("/", "")


def _read(path: Path) -> Any:
    with suppress(OSError, ValueError, RecursionError):
        if path.is_file() and path.stat().st_size <= _MOST_BYTES:
            return json.loads(path.read_text(encoding="utf-8"))
    return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
