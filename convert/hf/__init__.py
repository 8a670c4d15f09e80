"""Checkpoints of `transformers` to GGUF: planned tensor by tensor, written a slab at a time."""

from .conversion import Conversion, Options
from .planning import plan_conversion

__all__ = ["Conversion", "Options", "plan_conversion"]
