"""Tensors and keys of families of the hub in files of many layers, from `data/hub_families.json`:
what llama.cpp's converter writes of toys, with wider rows and the layers again and again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nextn.core.gguf.types import Typed, ValueType, Writable

from .hub_checkpoints import CASES

DATA = Path(__file__).parents[2] / "data" / "hub_families.json"
TIMES = 7
# Spellings of others, whose files have the same tensors; and one that llama.cpp does not load with
# so many layers.
AGAIN = (
    "mimo2-fused",
    "gpt-oss-mxfp4",
    "phi-longrope",
    "llama4-chunks",
    "exaone4-windows",
    "deepseek-v2",
)

Shapes = dict[str, tuple[int, ...]]


def hub_families(row: int) -> dict[str, tuple[dict[str, Writable], Shapes]]:
    """By the names of `CASES`; rows are `row` wide."""
    found: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return {
        f"hub {name}": _repeated(CASES[name].architecture, told, row)
        for name, told in found.items()
        if name not in AGAIN
    }


def _repeated(
    architecture: str, told: dict[str, Any], row: int
) -> tuple[dict[str, Writable], Shapes]:
    def number(key: str) -> int:
        return int(told["keys"].get(key, ["U32", 0])[-1])

    n_blocks = number("block_count")
    trunk = n_blocks - number("nextn_predict_layers")
    more = (TIMES - 1) * trunk
    keys: dict[str, Writable] = {"general.architecture": architecture}
    for key, (*kinds, value) in told["keys"].items():
        keys[f"{architecture}.{key}"] = _typed(key, kinds, value, n_blocks, trunk)
    keys[f"{architecture}.block_count"] = n_blocks + more
    shapes: Shapes = {}
    for name, shape in told["tensors"].items():
        wide = _widened(name, tuple(shape), row)
        found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        if found is None:
            shapes[name] = wide
            continue
        block, stem = int(found[1]), found[2]
        repeats = range(TIMES) if block < trunk else (TIMES - 1,)
        shapes |= {f"blk.{block + i * trunk}.{stem}": wide for i in repeats}
    return keys, shapes


def _typed(key: str, kinds: list[str], value: Any, n_blocks: int, trunk: int) -> Typed:
    if len(kinds) == 1:
        return Typed(ValueType[kinds[0]], value)
    if len(value) in (n_blocks, trunk) and "sections" not in key:
        value = [*value[:trunk] * TIMES, *value[trunk:]]
    return Typed(ValueType.ARRAY, value, ValueType[kinds[1]])


def _widened(name: str, shape: tuple[int, ...], row: int) -> tuple[int, ...]:
    if len(shape) == 1 or "conv" in name:
        return shape
    if len(shape) == 2:
        rows = 8 if name in ("token_embd.weight", "output.weight") else min(shape[0], 4)
        return rows, row
    return *shape[:-2], 2, row
