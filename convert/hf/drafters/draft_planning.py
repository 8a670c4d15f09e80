"""Drafters: from a checkpoint, and the model it drafts for, to what is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ....core.errors import ConfigError, ModelError
from ....core.gguf.encode import exact_types
from ....core.gguf.metadata import Metadata
from ....core.gguf.printable import listing, printable
from ....core.gguf.types import Typed, ValueType
from ...checkpoint import ModelCheckpoint, StoredTensor
from ...drafters import (
    DRAFT_TO_TARGET,
    DrafterDescription,
    describe,
    find_tensor_faults,
    fit_faults,
    map_faults,
    target_tokens,
)
from ...drafters.dflash_file import MASK
from ..checkpoint_family import TensorMap
from ..conversion import WITH, Conversion, Options, PlannedFile, make_conversion
from ..families.checkpoint_rows import check_activation
from ..matrix_rows import OutputTensor
from ..metadata_keys import model_keys
from ..model_sizes import ModelSizes, read_sizes
from ..output_types import as_floats
from ..rope_setting import read_rope
from ..stored_names import sort_tensors
from ..tokenizer import tokenizer_keys
from .draft_layout import DraftLayout, DraftSource, draft_config
from .draft_target import FLAG, verifier_of

_MOST_NAMES: Final = 4  # in a message
_LEFT_OUT: Final = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight")
_TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model")
_PICKLED_MASK: Final = "mask_embedding.pt"


def plan_drafter(
    checkpoint: ModelCheckpoint, folder: Path, options: Options, layout: DraftLayout
) -> Conversion:
    _refuse(checkpoint, options, layout)
    family, target = layout.family, options.target
    config = draft_config(checkpoint.label, checkpoint.config).with_defaults(family.defaults)
    check_activation(config, family)
    source = DraftSource(checkpoint.config, config, target, [])
    tensors = {name: t for name, t in checkpoint.tensors.items() if _plain(name) not in _LEFT_OUT}
    of_map = [tensors.pop(name) for name in list(tensors) if _plain(name) == DRAFT_TO_TARGET]
    matrices = layout.choose(source, sort_tensors(tensors, config).matrices)
    sizes = read_sizes(config, 0, head_dim=family.head_dim, of_family=family.sizes)
    rope = read_rope(config, family.rope, family.rope_theta, sizes.head_dim)
    source.notes += rope.notes
    mapping = TensorMap(family, config, sizes)
    for name, matrix in matrices.items():
        mapping.add(name, matrix)
    planned = mapping.finish()
    if (factors := family.rope_factors(config, sizes, rope)) is not None:
        name = "rope_freqs.weight"
        planned[name] = OutputTensor(name, factors.shape, (), constant=factors)
    n_vocab = target.sizes.n_vocab if target is not None else sizes.n_vocab
    if of_map:
        planned[DRAFT_TO_TARGET] = _token_map(checkpoint.label, of_map[0], n_vocab)
    own = layout.keys(source, sizes, planned)
    prefix = f"{family.architecture}."
    keys = model_keys(config, family, sizes, rope)
    keys |= {prefix + name: value for name, value in own.items() if value is not None}
    mask = {} if (id_ := _mask(source)) is None else {MASK: Typed(ValueType.U32, id_)}
    described = _check(_Planned(checkpoint.label, keys, planned, mask, sizes, n_vocab), source)
    of_tokenizer, more = _tokenizer(checkpoint, folder, options, layout, sizes, n_vocab)
    source.notes += [*more, *described.refusals, *described.remarks]
    file = PlannedFile.of(checkpoint.label, family.architecture, sizes, keys, planned)
    made = make_conversion(file, of_tokenizer | mask, options.kind, folder, source.notes)
    made.drafter = described.words
    return made


def _refuse(checkpoint: ModelCheckpoint, options: Options, layout: DraftLayout) -> None:
    if options.mtp != WITH:
        raise ConfigError(
            f"{checkpoint.label} holds {layout.words}: --no-mtp and --mtp-only are for models"
        )
    if _PICKLED_MASK in checkpoint.place.names():
        raise ModelError(
            f"{checkpoint.label}: {_PICKLED_MASK} holds the embedding of the mask token as a "
            "pickle, which can run code when read, and without it drafts would be bad: convert it "
            "with llama.cpp"
        )
    if checkpoint.absent:
        raise ModelError(
            f"{checkpoint.label}: the index names {listing(list(checkpoint.absent), _MOST_NAMES)}, "
            "which no file has"
        )


def _plain(name: str) -> str:
    return name.removeprefix("model.")


def _token_map(label: str, stored: StoredTensor, n_vocab: int) -> OutputTensor:
    if stored.dtype not in ("I64", "I32", "I16") or len(stored.shape) != 1:
        raise ModelError(
            f"{label}: tensor {printable(stored.name)} is {stored.dtype} of shape {stored.shape}, "
            "expected a list of whole numbers"
        )
    tokens = target_tokens(stored.raw())
    if faults := map_faults(tokens, n_vocab):
        raise ModelError(f"{label}: {faults[0]}")
    return OutputTensor(DRAFT_TO_TARGET, tokens.shape, (), integers=tokens)


def _mask(source: DraftSource) -> int | None:
    found = source.config.get("mask_token_id")
    if found is not None and (type(found) is not int or not 0 <= found < 1 << 31):
        raise source.config.error(f"mask_token_id is {printable(found)}, not a token")
    return found


class _Planned(Struct, frozen=True):
    label: str
    keys: dict[str, Any]
    planned: Mapping[str, OutputTensor]
    mask: dict[str, Any]
    sizes: ModelSizes
    n_vocab: int


def _check(made: _Planned, source: DraftSource) -> DrafterDescription:
    """Raises ModelError for what is missing, has no place, does not fit, or fits another target."""
    label, planned = made.label, made.planned
    architecture = next(iter(made.keys)).partition(".")[0]
    keys: dict[str, Any] = {"general.architecture": architecture}
    keys[f"{architecture}.vocab_size"] = made.n_vocab
    metadata = Metadata(exact_types(keys | made.keys | made.mask), label)
    floats = as_floats(planned, metadata, label)
    described = describe(floats)
    found = find_tensor_faults(floats, described, has_numbers=False)
    if found.missing:
        names = listing(found.missing, _MOST_NAMES)
        raise ModelError(f"{label}: nothing in the checkpoint makes {names}")
    if found.surplus:
        sources = [f"{planned[name].source} ({name})" for name in found.surplus]
        raise ModelError(
            f"{label}: {described.words} has no use for {listing(sources, _MOST_NAMES)}; leaving "
            "it out would change the drafts"
        )
    complaints = described.complaints
    if source.target is not None:
        complaints = [*fit_faults(described, source.target.sizes), *complaints]
    if complaints:
        raise ModelError(f"{label}: {complaints[0]}")
    for name, text in found.misshapen.items():
        raise ModelError(f"{label}: {planned[name].source} does not fit config.json: {text}")
    return described


def _tokenizer(
    checkpoint: ModelCheckpoint,
    folder: Path,
    options: Options,
    layout: DraftLayout,
    sizes: ModelSizes,
    n_vocab: int,
) -> tuple[dict[str, Any], list[str]]:
    """The target's; without one, the drafter's own."""
    if options.target is not None:
        return options.target.tokenizer(n_vocab, options.pre)
    names = checkpoint.place.names()
    if not any(name in names for name in _TOKENIZERS):
        name = verifier_of(checkpoint.config)
        named = f"; config.json names {printable(name)}" if name else ""
        raise ModelError(
            f"{checkpoint.label} has no tokenizer, as {layout.words} is given its target's: name "
            f"the target with {FLAG} (a folder, repository or GGUF{named})"
        )
    return tokenizer_keys(checkpoint, layout.family.tokenizer, sizes.n_vocab, options.pre)
