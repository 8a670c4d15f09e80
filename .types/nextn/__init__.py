"""Speculative decoding for GGUF models that never changes the text.

model = nextn.load("model.gguf")
for event in model.generate("Once upon a time"):
    print(event.text, end="")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .core import load
    from .core.errors import NextnError
    from .core.generation import Event, GenerateParams
    from .core.runtime import Runtime
    from .core.sampling.params import SamplingParams
    from .core.speculation.options import SpecOptions

# Names are imported when they are used first, so that `import nextn` costs next to nothing.
_MODULES: Final = {
    "Event": ".core.generation",
    "GenerateParams": ".core.generation",
    "NextnError": ".core.errors",
    "Runtime": ".core.runtime",
    "SamplingParams": ".core.sampling.params",
    "SpecOptions": ".core.speculation.options",
    "load": ".core",
}

__all__ = [
    "Event",
    "GenerateParams",
    "NextnError",
    "Runtime",
    "SamplingParams",
    "SpecOptions",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
