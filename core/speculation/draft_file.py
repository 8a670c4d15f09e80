"""The file of `-md`: a draft model, or networks that draft for the target, as an MTP head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ..errors import ConfigError, ModelError
from ..gguf.checks import check_vocabulary
from ..gguf.reader import open_gguf
from ..models import add_networks, build_model, network_of
from ..models.drafters.foreign_names import in_names_of_today
from ..state.budget import MemoryBudget, make_budget
from ..tokenizer import load_tokenizer
from .companions import find_companions
from .drafters.draft_model_state import draft_sizes
from .drafters.translation import MAX_OPEN
from .drafters.vocabulary_difference import find_difference
from .options import (
    ASSISTANT,
    AUTO,
    DFLASH,
    DRAFT,
    EAGLE3,
    FROM_FILES,
    MTP,
    SpecOptions,
    named_by_file,
)
from .setting import LoadedModel

if TYPE_CHECKING:
    from ..backend.interface import Backend
    from ..gguf.reader import GgufFile
    from ..models.demand import Demand
    from ..state.sizes import StateSizes

logger = logging.getLogger(__name__)

WHAT: Final = {
    MTP: "an MTP head",
    EAGLE3: "an EAGLE3 drafter",
    DFLASH: "a DFlash drafter",
    ASSISTANT: "a Gemma 4 assistant",
}


class DraftFile(Struct, frozen=True):
    file: GgufFile
    drafter: str  # that it is for
    has_tokens: bool
    is_companion: bool = False  # found beside the model, and left out if it does not fit

    @property
    def is_model(self) -> bool:
        """Whether it is a whole model, not networks for the target."""
        return self.drafter == DRAFT


def open_drafts(
    paths: Sequence[str | Path] | None, options: SpecOptions, target: GgufFile
) -> list[DraftFile]:
    """Those of the files that some type of speculation uses; None: those beside the target's. A
    ConfigError names two of a kind."""
    if paths is None:
        return [
            DraftFile(each.file, each.kind, each.has_tokens, True)
            for each in find_companions(target, options)
        ]
    found: dict[str, DraftFile] = {}
    for path in paths:
        each = open_draft(path, options)
        if each is None:
            continue
        first = found.setdefault(each.drafter, each)
        if first is not each:
            what = WHAT.get(each.drafter, "a whole model")
            raise ConfigError(
                f"{each.file.label}: {what}, and so is {first.file.label}; give one of each kind"
            )
    return list(found.values())


def open_draft(path: str | Path, options: SpecOptions) -> DraftFile | None:
    """None, with a warning, if no type of speculation would use it."""
    if {*FROM_FILES, AUTO}.isdisjoint(options.types):
        logger.warning(
            "the draft model is not used: spec-type is %s; give %s or auto",
            ",".join(options.types),
            ", ".join(FROM_FILES),
        )
        return None
    file, written_for = in_names_of_today(open_gguf(path))
    if written_for:
        logger.info("%s: names of %s are read as llama.cpp's", file.label, written_for)
    has_tokens = check_vocabulary(file) > 0
    network = network_of(file)
    types = named_by_file(options.types, [network] if network else [])
    if network is not None and {network, AUTO}.isdisjoint(types):
        raise ConfigError(
            f"{file.label}: holds only {WHAT[network]}, which is for spec-type {network}"
        )
    if network is None and {DRAFT, AUTO}.isdisjoint(options.types):
        has_head = file.metadata.int("nextn_predict_layers", 0) > 0
        logger.warning(
            "%s is not used: it is a whole model, and spec-type is %s; give draft for it%s",
            file.label,
            ",".join(options.types),
            ", or its head alone (spec convert extract)" if has_head else "",
        )
        file.close()
        return None
    return DraftFile(file, network or DRAFT, has_tokens)


def leave_out(draft: DraftFile, error: Exception) -> None:
    """For one that was found beside the model and cannot draft for it."""
    label = draft.file.label
    why = str(error).removeprefix(f"{label}: ").removeprefix(f"{label}, ")
    logger.warning("%s lies beside the model, and is left out: %s", label, why)
    draft.file.close()


def load_draft(
    draft: DraftFile, target: LoadedModel, backend: Backend, check: Callable[[Demand], None]
) -> LoadedModel | None:
    """The draft model; None if it was networks, which the target has from now on.

    `check` is called with the memory that it will take, and may raise.
    """
    file = draft.file
    if draft.is_model:
        model = build_model(file, backend, check, with_nextn=False)
        return LoadedModel(file, model, load_tokenizer(file.metadata))
    if draft.has_tokens:
        difference = find_difference(target.tokenizer, load_tokenizer(file.metadata))
        if difference is not None:
            what = WHAT[draft.drafter].partition(" ")[2]
            raise ModelError(f"{file.label}: this {what} belongs to another model: {difference}")
    add_networks(target.model, file, backend, check)
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
