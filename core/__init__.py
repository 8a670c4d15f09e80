"""Everything that makes tokens. Never prints, never parses arguments.

runtime = core.load("model.gguf")
for event in runtime.generate("Once upon a time"):
    ...
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from . import nano

if TYPE_CHECKING:
    from .runtime import Runtime
    from .speculation.options import SpecOptions


def load(  # noqa: PLR0913 - options by name
    path: str | Path | None = None,
    device: str = "auto",
    *,
    n_ctx: int | None = None,
    threads: int | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    repack_cache: bool = False,
    spec: SpecOptions | None = None,
    draft: str | Path | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Runtime:
    """A model from a GGUF file, or the bundled one; on `auto`, `cpu`, `torch` or `cuda`.

    On the CPU, cached keys and values may be of type f16 or q8_0. With `repack_cache`, its form of
    the weights is kept on disk and mapped the next time. `spec` names the drafters (without it,
    every one that the files offer), `draft` is the file of a draft model: neither changes the text.
    """
    from .runtime import load_runtime
    from .speculation.options import BY_DEFAULT

    return load_runtime(
        nano.path() if path is None else path,
        device,
        n_ctx=n_ctx,
        threads=threads,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        repack_cache=repack_cache,
        spec=spec or BY_DEFAULT,
        draft=draft,
        progress=progress,
    )
