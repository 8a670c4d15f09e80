"""Everything that makes tokens. Never prints, never parses arguments.

runtime = specdec.core.load("model.gguf")
for event in runtime.generate("Once upon a time"):
    ...
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runtime import Runtime


def load(
    path: str | Path,
    device: str = "auto",
    *,
    n_ctx: int | None = None,
    threads: int | None = None,
    repack_cache: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Runtime:
    """A model from a GGUF file, on `auto`, `cpu`, `torch` or `torch:<torch device>`.

    With `repack_cache`, the CPU's form of the weights is kept on disk and mapped the next time.
    """
    from .runtime import load_runtime

    return load_runtime(
        path, device, n_ctx=n_ctx, threads=threads, repack_cache=repack_cache, progress=progress
    )
