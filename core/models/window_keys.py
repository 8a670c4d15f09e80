"""Which blocks of a model see only the newest cells, and how many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..gguf.types import ValueType

if TYPE_CHECKING:
    from ..gguf.metadata import Metadata
    from .hparams import Hparams

_KEY = "attention.sliding_window_pattern"


def read_windows(
    meta: Metadata, hparams: Hparams, period: int = 0, *, may_lack: bool = False
) -> tuple[int, ...]:
    """Cells that a row of each block sees, MTP blocks included; 0: all.

    `period`: where the file has no pattern, the last of so many blocks sees all; 0: every block
    does. Blocks that a pattern is too short for see all. `may_lack`: a file without a width has no
    windows; else it is refused if any block is to have one.
    """
    n_blocks = len(hparams.n_heads)
    key = meta.full_key(_KEY)
    if meta.has(_KEY) and meta.entry(key).type is ValueType.ARRAY:
        is_windowed = list(meta.bools(_KEY))[:n_blocks]
    else:
        period = meta.int(_KEY, period)
        is_windowed = [i % period < period - 1 for i in range(hparams.n_layers)] if period else []
    is_windowed += [False] * (n_blocks - len(is_windowed))
    if not any(is_windowed):
        return (0,) * n_blocks
    width = "attention.sliding_window"
    window = meta.int(width, 0) if may_lack else meta.int(width, low=1)
    return tuple(window if windowed else 0 for windowed in is_windowed)
