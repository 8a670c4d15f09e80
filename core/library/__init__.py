"""Speculative decoding for GGUF models that never changes the text.

model = nextn.load("model.gguf")
print(model.generate("def fibonacci(n):", max_tokens=64).text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .core.api.generation_options import GenerationOptions
    from .core.api.language_model import LanguageModel
    from .core.api.load_model import load
    from .core.api.results import Piece, Result
    from .core.api.streams import AsyncStream, Stream
    from .core.errors import NextnError
    from .core.speculation.options import SpecOptions
    from .core.state.embedded_rows import ImageRows

# Names are imported when they are used first, so that `import nextn` costs next to nothing.
_MODULES: Final = {
    "AsyncStream": ".core.api.streams",
    "GenerationOptions": ".core.api.generation_options",
    "ImageRows": ".core.state.embedded_rows",
    "LanguageModel": ".core.api.language_model",
    "NextnError": ".core.errors",
    "Piece": ".core.api.results",
    "Result": ".core.api.results",
    "SpecOptions": ".core.speculation.options",
    "Stream": ".core.api.streams",
    "load": ".core.api.load_model",
}

__all__ = [
    "AsyncStream",
    "GenerationOptions",
    "ImageRows",
    "LanguageModel",
    "NextnError",
    "Piece",
    "Result",
    "SpecOptions",
    "Stream",
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
