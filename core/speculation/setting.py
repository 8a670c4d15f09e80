"""What drafters are made from: loaded models and the options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from .options import SpecOptions

if TYPE_CHECKING:
    from ..backend.interface import Backend
    from ..gguf.reader import GgufFile
    from ..models.model import Model
    from ..tokenizer import Tokenizer
    from .drafter_results import ResultFile
    from .token_counts import TokenCounts


class LoadedModel(Struct, frozen=True):
    file: GgufFile
    model: Model
    tokenizer: Tokenizer


class Setting(Struct, frozen=True):
    """What a drafter can be made from."""

    options: SpecOptions
    target: LoadedModel
    backend: Backend
    n_slots: int  # sequences at once
    n_ctx: int  # tokens of each
    draft: LoadedModel | None = None  # the model of -md, if it is a whole one
    token_counts: TokenCounts | None = None  # of what the target has written
    result_files: Mapping[str, ResultFile] = field(default_factory=dict)  # by drafter
