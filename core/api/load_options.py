"""The keyword arguments of `nextn.load` that go to the runtime; its defaults hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict


class LoadOptions(TypedDict, total=False):
    n_ctx: int | None  # tokens of a prompt and its continuation
    n_batch: int | None  # tokens of a prompt that one step reads, up to 256
    threads: int | None
    cache_type_k: str  # f16 or q8_0
    cache_type_v: str
    repack_cache: bool  # keep the CPU's form of the weights on disk, and map it the next time
    draft: str | Path | Sequence[str | Path] | None  # of draft models, heads and other networks
    progress: Callable[[str, float], None] | None  # called with a stage and the fraction done
    mmproj: str | Path | None  # the model's mmproj file, for prompts with images
    image_min_tokens: int | None  # of the context, for an image
    image_max_tokens: int | None
    overrides: Mapping[str, bool | int | float | str]  # of keys of the file, for this load
    lora: str | Path | Iterable[str | Path | tuple[str | Path, float]]  # adapters, with scales
