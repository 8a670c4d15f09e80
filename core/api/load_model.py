"""`nextn.load`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .. import load as load_runtime
from .language_model import LanguageModel

if TYPE_CHECKING:
    from ..speculation.options import SpecOptions


def load(  # noqa: PLR0913 - options by name
    path: str | Path | None = None,
    device: str = "auto",
    *,
    parallel: int = 1,
    n_ctx: int | None = None,
    threads: int | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    repack_cache: bool = False,
    speculation: str | SpecOptions | None = None,
    draft: str | Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> LanguageModel:
    """Load a model from a GGUF file, or the bundled one, on `auto`, `cpu`, `torch` or `cuda`.

    `parallel`: texts at once, each of up to `n_ctx` tokens; further calls wait. `speculation`
    names the drafters, "ngram-mod,mtp" for instance; every one that the files offer if not given.
    `draft` is the file of a draft model. Neither changes the text. `progress` is called with a
    stage and the fraction of it that is done.
    """
    from ..speculation.options import SpecOptions, parse_types

    spec = speculation
    if isinstance(spec, str):
        spec = SpecOptions(types=parse_types(spec.split(",")))
    runtime = load_runtime(
        path,
        device,
        n_ctx=n_ctx,
        threads=threads,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        repack_cache=repack_cache,
        spec=spec,
        draft=draft,
        progress=progress,
    )
    try:
        return LanguageModel(runtime, parallel)
    except BaseException:
        runtime.close()
        raise
