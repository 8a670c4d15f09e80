"""Drafters that lie beside a model's file: found without a flag, by what they say of their target.

Whole models are no companions: which of two models is to draft for the other is the user's choice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import NextnError
from ..gguf.folder_files import gguf_files, listing, peek_architecture
from ..gguf.reader import open_gguf
from ..hub_models import DRAFTER_FOLDERS
from ..models import network_of
from ..models.drafters import NETWORKS
from ..models.drafters.foreign_names import in_names_of_today, is_draft_dialect
from .options import AUTO, DRAFT, FROM_FILES, MTP, SpecOptions

if TYPE_CHECKING:
    from ..gguf.reader import GgufFile

logger = logging.getLogger(__name__)


def find_companions(target: GgufFile, options: SpecOptions) -> list[GgufFile]:
    """One of each kind that the types name, or of each kind there is for `auto`."""
    kinds = {*FROM_FILES} - {DRAFT}
    if AUTO not in options.types:
        kinds &= {*options.types}
    if target.metadata.int("nextn_predict_layers", 0):  # it has a head of its own
        kinds.discard(MTP)
    # What belongs to other models of the folder is of interest where a type was named.
    level = logging.INFO if AUTO in options.types else logging.WARNING
    found: dict[str, list[GgufFile]] = {}
    for path in _candidates(target) if kinds else ():
        file = _open(path, target)
        kind = network_of(file) if file is not None else None
        if file is None or kind not in kinds:
            continue
        if why := _misfit(file, target):
            logger.log(level, "%s is not for this model: %s", file.label, why)
        else:
            found.setdefault(kind, []).append(file)
    return [_choose(files, target) for files in found.values()]


def _choose(files: list[GgufFile], target: GgufFile) -> GgufFile:
    """The one that names the model, else the smallest."""
    best = min(files, key=lambda file: (not _names(file, target), file.n_bytes, file.path.name))
    for other in files:
        if other is not best:
            logger.info("%s is not used: %s is", other.label, best.label)
            other.close()
    return best


def _names(file: GgufFile, target: GgufFile) -> bool:
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


def _open(path: Path, target: GgufFile) -> GgufFile | None:
    try:
        return in_names_of_today(open_gguf(path)).file
    except NextnError as error:
        logger.info("%s beside %s is not used: %s", path.name, target.label, error)
        return None


def _misfit(file: GgufFile, target: GgufFile) -> str:
    """What shows without loading it that it belongs to another model; "" if nothing does."""
    meta, of_target = file.metadata, target.metadata
    n_embd = of_target.int("embedding_length", low=1)
    n_layers = of_target.int("block_count", low=1)
    try:
        layers = meta.ints("target_layers", ())
        width = meta.int("target_hidden_size", 0)
        fc = file.tensors.get("fc.weight")
        if not width and fc is not None and layers:
            width = fc.shape[-1] // len(layers)
        n_tokens, n_vocab = _n_tokens(file), _n_tokens(target)
    except NextnError as error:
        return str(error)
    if width and width != n_embd:
        return f"it reads rows of {width}, the model has rows of {n_embd}"
    if layers and max(layers) > n_layers:
        return f"it reads layer {max(layers)}, the model has {n_layers}"
    if n_tokens and n_vocab and n_tokens != n_vocab:
        return f"its vocabulary has {n_tokens} tokens, the model's {n_vocab}"
    return ""


def _n_tokens(file: GgufFile) -> int:
    key = "tokenizer.ggml.tokens"
    return len(file.metadata.entry(key).value) if key in file.metadata else 0
