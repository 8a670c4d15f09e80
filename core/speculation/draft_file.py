"""The file of `-md`: a draft model, or an MTP head for the target."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError, ModelError
from ..gguf.checks import check_vocabulary
from ..gguf.reader import open_gguf
from ..models import add_heads, build_model, is_head_only
from ..state.budget import MemoryBudget, make_budget
from ..tokenizer import load_tokenizer
from .drafters.draft_model_state import draft_sizes
from .drafters.translation import MAX_OPEN
from .drafters.vocabulary_difference import find_difference
from .options import AUTO, DRAFT, MTP, SpecOptions
from .setting import LoadedModel

if TYPE_CHECKING:
    from ..backend.interface import Backend
    from ..gguf.reader import GgufFile
    from ..models.model_weights import Demand
    from ..state.sizes import StateSizes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftFile:
    file: GgufFile
    is_head: bool
    has_tokens: bool


def open_draft(path: str | Path, options: SpecOptions) -> DraftFile | None:
    """None, with a warning, if no type of speculation would use it."""
    if {DRAFT, MTP, AUTO}.isdisjoint(options.types):
        logger.warning(
            "the draft model is not used: spec-type is %s; give draft, mtp or auto",
            ",".join(options.types),
        )
        return None
    file = open_gguf(path)
    has_tokens = check_vocabulary(file) > 0
    is_head = is_head_only(file)
    if is_head and {MTP, AUTO}.isdisjoint(options.types):
        raise ConfigError(f"{file.label}: holds only an MTP head, which is for spec-type mtp")
    if not is_head and {DRAFT, AUTO}.isdisjoint(options.types):
        has_head = file.metadata.int("nextn_predict_layers", 0) > 0
        logger.warning(
            "%s is not used: it is a whole model, and spec-type is %s; give draft for it%s",
            file.label,
            ",".join(options.types),
            ", or its head alone (spec convert extract)" if has_head else "",
        )
        file.close()
        return None
    return DraftFile(file, is_head, has_tokens)


def load_draft(
    draft: DraftFile, target: LoadedModel, backend: Backend, check: Callable[[Demand], None]
) -> LoadedModel | None:
    """The draft model; None if it was a head, which the target has from now on.

    `check` is called with the memory that it will take, and may raise.
    """
    file = draft.file
    if not draft.is_head:
        model = build_model(file, backend, check, with_nextn=False)
        return LoadedModel(file, model, load_tokenizer(file.metadata))
    if draft.has_tokens:
        difference = find_difference(target.tokenizer, load_tokenizer(file.metadata))
        if difference is not None:
            raise ModelError(f"{file.label}: this MTP head belongs to another model: {difference}")
    add_heads(target.model, file, backend, check)
    return None


def draft_budget(
    target: LoadedModel,
    draft: LoadedModel,
    backend: Backend,
    options: SpecOptions,
    sizes: StateSizes,
) -> MemoryBudget:
    """What the state of a draft model takes beside a target's state of these sizes."""
    is_shared = find_difference(target.tokenizer, draft.tokenizer) is None
    n_unsure = options.n_max + (0 if is_shared else MAX_OPEN)
    n_train = draft.model.hparams.n_ctx_train
    shape = draft.model.state_shape
    return make_budget(backend, shape, draft_sizes(sizes, n_train, n_unsure), None, 0)
