"""The chat template, one or several, from wherever a checkpoint keeps it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ....core.gguf.checks import MAX_TEMPLATE_BYTES
from ...checkpoint import Checkpoint
from .files import TokenizerFiles

_KEY = "tokenizer.chat_template"
_FOLDER = "additional_chat_templates"


def template_keys(
    checkpoint: Checkpoint, files: TokenizerFiles, notes: list[str]
) -> dict[str, Any]:
    """chat_template.jinja is newer than what the settings may still hold."""
    found: Any = checkpoint.text("chat_template.jinja")
    if found is None:
        found = files.settings.get("chat_template")
    if found is None:
        found = (checkpoint.json("chat_template.json") or {}).get("chat_template")
    more = _additional(checkpoint)
    if isinstance(found, str):
        found = [{"name": "default", "template": found}]
    found = [*found, *more] if isinstance(found, list) else more
    out: dict[str, str] = {}
    names: list[str] = []
    default = None
    for entry in found:
        name, text = (
            (entry.get("name"), entry.get("template"))
            if isinstance(entry, Mapping)
            else (None, None)
        )
        if not isinstance(name, str) or not isinstance(text, str):
            notes.append("a chat template without name and text is left out")
        elif name == "default":
            default = text
        elif key := re.sub(r"[^0-9A-Za-z]", "_", name):
            names.append(key)
            out[f"{_KEY}.{key}"] = text
    if default is not None:
        out[_KEY] = default
    listed = {"tokenizer.chat_templates": names} if names else {}
    return {**_kept(out, notes), **listed}


def _additional(checkpoint: Checkpoint) -> list[dict[str, str]]:
    """Those of a folder beside chat_template.jinja."""
    place = checkpoint.place
    names = sorted(name for name in place.below(_FOLDER) if name.endswith(".jinja"))
    sources = [(name.removesuffix(".jinja"), place.open(f"{_FOLDER}/{name}")) for name in names]
    out = []
    for name, source in sources:
        text = bytes(source.read(0, min(source.size, MAX_TEMPLATE_BYTES + 1)))
        out.append({"name": name, "template": text.decode(errors="replace")})
        source.close()
    return out


def _kept(templates: dict[str, str], notes: list[str]) -> dict[str, Any]:
    kept = {k: t for k, t in templates.items() if len(t.encode()) <= MAX_TEMPLATE_BYTES}
    if len(kept) < len(templates):
        notes.append(f"a chat template of more than {MAX_TEMPLATE_BYTES} bytes is left out")
    return kept
