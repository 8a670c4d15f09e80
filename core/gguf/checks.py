"""Checks on a file's vocabulary that hold for every architecture."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from .metadata import Metadata
from .printable import printable, printable_path
from .reader import GgufFile
from .types import INTEGERS, ValueType

MAX_TEMPLATE_BYTES = 1 << 20  # real ones stay below 30 kB
MAX_TOKEN_TYPE = 6

_TOKENS = "tokenizer.ggml.tokens"
_TEXTS = frozenset({ValueType.STRING})


def check_vocabulary(file: GgufFile) -> int:
    """The number of tokens, after checking everything that indexes or describes them.

    0 if the file has no vocabulary, as a drafter's file may not.
    """
    metadata, source = file.metadata, printable_path(file.paths[0])
    _check_templates(metadata, source)
    if "tokenizer.ggml.merges" in metadata:
        _array(metadata, "tokenizer.ggml.merges", _TEXTS, "strings", source)
    if _TOKENS not in metadata:
        return 0
    n_tokens = _array(metadata, _TOKENS, _TEXTS, "strings", source)
    if not n_tokens:
        raise ModelError(f"{source}: {_TOKENS} is empty")
    _check_scores(metadata, n_tokens, source)
    _check_types(metadata, n_tokens, source)
    _check_special_ids(metadata, n_tokens)
    _check_embedding_rows(file, n_tokens, source)
    return n_tokens


def _array(
    metadata: Metadata, key: str, elements: frozenset[ValueType], noun: str, source: str
) -> int:
    """Length of an array that must hold one of `elements`."""
    entry = metadata.entry(key)
    if entry.element not in elements:
        raise ModelError(f"{source}: {key} is {entry.description}, expected an array of {noun}")
    return len(entry.value)


def _per_token(
    metadata: Metadata, key: str, elements: frozenset[ValueType], noun: str, source: str
) -> NDArray[Any]:
    found = _array(metadata, key, elements, noun, source)
    n_tokens = len(metadata.entry(_TOKENS).value)
    if found != n_tokens:
        raise ModelError(f"{source}: {key} has {found} elements, but there are {n_tokens} tokens")
    return np.asarray(metadata.entry(key).value)


def _check_scores(metadata: Metadata, n_tokens: int, source: str) -> None:
    key = "tokenizer.ggml.scores"
    if key not in metadata:
        return
    scores = _per_token(metadata, key, frozenset({ValueType.F32}), "f32", source)
    bad = np.flatnonzero(np.isnan(scores))
    if bad.size:
        raise ModelError(f"{source}: {key}[{bad[0]}] is NaN")


def _check_types(metadata: Metadata, n_tokens: int, source: str) -> None:
    key = "tokenizer.ggml.token_type"
    if key not in metadata:
        return
    kinds = _per_token(metadata, key, INTEGERS, "integers", source)
    bad = np.flatnonzero((kinds < 0) | (kinds > MAX_TOKEN_TYPE))
    if bad.size:
        raise ModelError(
            f"{source}: {key}[{bad[0]}] is {kinds[bad[0]]}, expected 0 to {MAX_TOKEN_TYPE}"
        )


def _check_special_ids(metadata: Metadata, n_tokens: int) -> None:
    for key in metadata:
        if key.startswith("tokenizer.") and key.endswith("_token_id"):
            metadata.int(key, high=n_tokens - 1)
        if key.startswith("tokenizer.") and key.endswith("_token_ids"):
            metadata.ints(key, low=0, high=n_tokens - 1)


def _check_embedding_rows(file: GgufFile, n_tokens: int, source: str) -> None:
    """Rows may exceed tokens (padding to a round number), never the other way round.

    With `d2t` the head is one over part of the vocabulary.
    """
    names = (
        ["token_embd.weight"] if "d2t" in file.tensors else ["token_embd.weight", "output.weight"]
    )
    for name in names:
        tensor = file.tensors.get(name)
        if tensor is None:
            continue
        if len(tensor.shape) != 2:
            raise ModelError(f"{source}: {name} has shape {tensor.shape}, expected two dimensions")
        if tensor.shape[0] < n_tokens:
            raise ModelError(
                f"{source}: {name} has {tensor.shape[0]} rows, but there are {n_tokens} tokens"
            )


def _check_templates(metadata: Metadata, source: str) -> None:
    for key in metadata:
        if not key.startswith("tokenizer.chat_template") or key.endswith("chat_templates"):
            continue
        metadata.str(key)
        size = len(metadata.raw(key))
        if size > MAX_TEMPLATE_BYTES:
            raise ModelError(
                f"{source}: {printable(key)} has {size} bytes, more than {MAX_TEMPLATE_BYTES} "
                "allowed"
            )
