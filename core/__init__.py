"""Everything that makes tokens. Never prints, never parses arguments.

runtime = core.load("model.gguf")
for event in runtime.generate("Once upon a time"):
    ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .load_runtime import load_runtime as load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """`load` is imported when it is used first: other parts need no model."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = import_module(".load_runtime", __name__).load_runtime
    globals()[name] = value
    return value
