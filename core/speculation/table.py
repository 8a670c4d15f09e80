"""How drafters are made for a loaded model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

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
    """What a drafter can be made from."""

    options: SpecOptions
    target: LoadedModel
    backend: Backend
    n_slots: int  # sequences at once
    n_ctx: int  # tokens of each
    draft: LoadedModel | None = None  # the model of -md, if it is a whole one
    token_counts: TokenCounts | None = None  # of what the target has written


def make_speculator(name: str, setting: Setting) -> Speculator:
    module, _, function = names.DRAFTERS[name].partition(":")
    make: Callable[[Setting], Speculator]
    make = getattr(import_module(module, __package__), function or "make")
    return make(setting)


def resolve_types(setting: Setting) -> tuple[str, ...]:
    """What `auto` means for these files; other types as they are."""
    types = setting.options.types
    if types == (names.NONE,):
        return ()
    if types != (names.AUTO,):
        return types
    found = {names.NGRAM_MOD, *setting.target.model.drafters}
    if setting.draft is not None:
        found.add(names.DRAFT)
    return tuple(name for name in names.DRAFTERS if name in found)
