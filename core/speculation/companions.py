"""Drafters that lie beside a model's file: found without a flag, by what they say of their target.

Whole models are no companions, unless LM Studio's or Ollama's files name one: which of two models
is to draft for the other is the user's choice.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ..errors import ModelError, NextnError
from ..gguf.checks import check_vocabulary
from ..gguf.folder_files import gguf_files, listing, peek_architecture
from ..gguf.reader import GgufFile, open_gguf
from ..gguf.types import ValueType
from ..hub.hub_models import DRAFTER_FOLDERS
from ..models import network_of
from ..models.drafters import NETWORKS
from ..models.drafters.foreign_names import in_names_of_today, is_draft_dialect
from ..models.drafters.training_record import read_training_record
from ..state.fingerprint import model_fingerprint
from .declared_drafters import declared_drafters
from .drafter_results import ResultFile
from .options import AUTO, DRAFT, FROM_FILES, MTP, SpecOptions

logger = logging.getLogger(__name__)


class Companion(NamedTuple):
    kind: str  # of drafter
    file: GgufFile
    has_tokens: bool
    names_target: bool


def find_companions(target: GgufFile, options: SpecOptions) -> list[Companion]:
    """One of each kind that the types name, or of each kind there is for `auto`."""
    kinds = {*FROM_FILES}
    if AUTO not in options.types:
        kinds &= {*options.types}
    if target.metadata.int("nextn_predict_layers", 0):  # it has a head of its own
        kinds.discard(MTP)
    # What belongs to other models of the folder is of interest where a type was named.
    level = logging.INFO if AUTO in options.types else logging.WARNING
    found: dict[str, list[Companion]] = {}
    declared = [*declared_drafters(target.path)] if kinds else []
    beside = _candidates(target) if kinds - {DRAFT} else ()
    for path in dict.fromkeys((*declared, *beside)):
        try:
            companion = _open(path, target, kinds, is_declared=path in declared)
        except NextnError as error:  # of that file: the model runs without it
            logger.log(level, "%s beside the model is not used: %s", path.name, error)
            continue
        if companion is not None:
            found.setdefault(companion.kind, []).append(companion)
    return [_choose(companions, target) for companions in found.values()]


def _open(
    path: Path, target: GgufFile, kinds: Collection[str], *, is_declared: bool
) -> Companion | None:
    """None for a file of another kind. Raises a NextnError for one that does not fit."""
    opened = open_gguf(path)
    try:
        file = in_names_of_today(opened).file
        kind = network_of(file) or (DRAFT if is_declared else None)
        if kind is None or kind not in kinds:
            opened.close()
            return None
        if kind != DRAFT and (why := _misfit(file, target)):
            raise ModelError(f"{file.label}: {why}")
        is_for_it = is_declared or _names(file, target)
        return Companion(kind, file, check_vocabulary(file) > 0, is_for_it)
    except NextnError:
        opened.close()
        raise


def _choose(companions: list[Companion], target: GgufFile) -> Companion:
    """The one that names the model, else the smallest; not one that has drafted badly."""

    def rank(each: Companion) -> tuple[bool, bool, int, str]:
        was_poor = len(companions) > 1 and ResultFile(target, each.file).read().is_poor
        return was_poor, not each.names_target, each.file.n_bytes, each.file.path.name

    best = min(companions, key=rank)
    for other in companions:
        if other is not best:
            logger.info("%s is not used: %s is", other.file.label, best.file.label)
            other.file.close()
    return best


def _names(file: GgufFile, target: GgufFile) -> bool:
    if (record := read_training_record(file)) is not None:
        return record.target == model_fingerprint(target)
    meta, name = file.metadata, target.metadata.str("general.name", "")
    named = [meta.str(f"general.{key}", "") for key in ("base_model.0.name", "name")]
    return bool(name) and any(name.lower() in text.lower() for text in named)


def _candidates(target: GgufFile) -> Iterator[Path]:
    """Files whose beginning says that they may hold a drafter."""
    folder, own = target.path.parent, {path.name for path in target.paths}
    arch = target.metadata.architecture
    for each in (folder, *_subfolders(folder)):
        for path in gguf_files(each):
            if each == folder and path.name in own:
                continue
            found = peek_architecture(path)
            is_head = found == arch and "mtp" in (*path.stem.lower().split("-"), each.name.lower())
            if is_head or found in NETWORKS or is_draft_dialect(found):
                yield path


def _subfolders(folder: Path) -> list[Path]:
    return [
        path for path in listing(folder) if path.name.lower() in DRAFTER_FOLDERS and path.is_dir()
    ]


def _misfit(file: GgufFile, target: GgufFile) -> str:
    """What shows without loading it that it belongs to another model; "" if nothing does."""
    meta, of_target = file.metadata, target.metadata
    n_embd = of_target.int("embedding_length", low=1)
    n_layers = of_target.int("block_count", low=1)
    layers = meta.ints("target_layers", ())
    width = meta.int("target_hidden_size", 0)
    fc = file.tensors.get("fc.weight")
    if not width and fc is not None and layers:
        width = fc.shape[-1] // len(layers)
    n_tokens, n_vocab = _n_tokens(file), _n_tokens(target)
    if width and width != n_embd:
        return f"it reads rows of {width}, the model has rows of {n_embd}"
    if layers and max(layers) > n_layers:
        return f"it reads layer {max(layers)}, the model has {n_layers}"
    if n_tokens and n_vocab and n_tokens != n_vocab:
        return f"its vocabulary has {n_tokens} tokens, the model's {n_vocab}"
    return ""


def _n_tokens(file: GgufFile) -> int:
    key = "tokenizer.ggml.tokens"
    if key not in file.metadata:
        return 0
    entry = file.metadata.entry(key)
    return len(entry.value) if entry.element is ValueType.STRING else 0
