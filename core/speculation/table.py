"""The speculators: one row each, and how they are made for a loaded model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from . import options as names
from .interface import Speculator
from .options import SpecOptions

if TYPE_CHECKING:
    from ..backend.interface import Backend
    from ..gguf.reader import GgufFile
    from ..models.base import Model
    from ..tokenizer import Tokenizer
    from .token_counts import TokenCounts


@dataclass(frozen=True, slots=True)
class LoadedModel:
    file: GgufFile
    model: Model
    tokenizer: Tokenizer


@dataclass(frozen=True, slots=True)
class Setting:
    """What a speculator can be made from."""

    options: SpecOptions
    target: LoadedModel
    backend: Backend
    n_slots: int  # sequences at once
    n_ctx: int  # tokens of each
    draft: LoadedModel | None = None  # the model of -md, if it is a whole one
    token_counts: TokenCounts | None = None  # of what the target has written


# Each module has `make(setting) -> Speculator`, which says with a ConfigError why it cannot.
SPECULATORS: Final = {
    names.NGRAM_SIMPLE: "ngram_simple",
    names.NGRAM_MAP_K: "ngram_map",
    names.NGRAM_MAP_K4V: "ngram_map_k4v",
    names.NGRAM_MOD: "ngram_mod",
    names.NGRAM_CACHE: "ngram_cache",
    names.DRAFT: "draft_model",
    names.MTP: "mtp",
}


def make_speculator(name: str, setting: Setting) -> Speculator:
    make: Callable[[Setting], Speculator] = import_module(f".{SPECULATORS[name]}", __package__).make
    return make(setting)


def resolve_types(setting: Setting) -> tuple[str, ...]:
    """What `auto` means for these files; other types as they are."""
    types = setting.options.types
    if types == (names.NONE,):
        return ()
    if types != (names.AUTO,):
        return types
    found = [names.NGRAM_MOD]
    if setting.draft is not None:
        found.append(names.DRAFT)
    if setting.target.model.nextn:
        found.append(names.MTP)
    return tuple(name for name in names.TYPES if name in found)
