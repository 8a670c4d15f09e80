"""The chat template, one or several, from wherever a checkpoint keeps it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ....core.gguf.checks import MAX_TEMPLATE_BYTES
from ...checkpoint import Checkpoint
from .files import TokenizerFiles

_KEY = "tokenizer.chat_template"


def template_keys(
    checkpoint: Checkpoint, files: TokenizerFiles, notes: list[str]
) -> dict[str, Any]:
    """chat_template.jinja is newer than what the settings may still hold."""
    found: Any = checkpoint.text("chat_template.jinja")
    if found is None:
        found = files.settings.get("chat_template")
    if found is None:
        found = (checkpoint.json("chat_template.json") or {}).get("chat_template")
    if isinstance(found, str):
        return _kept({_KEY: found}, notes)
    out: dict[str, str] = {}
    names: list[str] = []
    default = None
    for entry in found if isinstance(found, list) else []:
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


def _kept(templates: dict[str, str], notes: list[str]) -> dict[str, Any]:
    kept = {k: t for k, t in templates.items() if len(t.encode()) <= MAX_TEMPLATE_BYTES}
    if len(kept) < len(templates):
        notes.append(f"a chat template of more than {MAX_TEMPLATE_BYTES} bytes is left out")
    return kept
