"""`--spec-draft-vocab`: the tokens that a short draft head knows.

The choice changes drafts, never the text. Tokens outside the head cannot be drafted; everything
else is as with the whole head.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from ...backend.step import Ints
from ...errors import ConfigError
from ...gguf.shown import shown, shown_path
from ...gguf.whole import read_whole
from ..token_counts import Counts

AUTO, FULL = "auto", "full"
ENOUGH_COUNTED: Final = 20_000  # tokens, before `auto` uses the counts
COVERED: Final = 0.995  # share of the written tokens that the head of `auto` covers
UNIT: Final = 256  # rows: heads are whole tiles, and slightly different counts give the same head
_SHORT_ENOUGH: Final = 0.6  # of the whole head; above, there is little to gain
_MAX_FILE: Final = 1 << 24
_MAX_DIGITS: Final = 20


def choose_tokens(option: str, n_vocab: int, counts: Counts) -> Ints | None:
    """Ascending ids; None: all of them."""
    if option == FULL:
        return None
    if option == AUTO:
        return _covering(n_vocab, counts)
    if _is_number(option):
        n = int(option)
        if n < 1:
            raise ConfigError("--spec-draft-vocab must be at least 1 token, auto, full or a file")
        return _most_useful(n, counts) if n < n_vocab else None
    return _from_file(Path(option), n_vocab)


def check_option(option: str) -> None:
    """Refuse what is wrong whatever the model is."""
    if option in (AUTO, FULL) or (_is_number(option) and int(option) > 0):
        return
    if not os.path.isfile(option):  # False for names that none can have
        raise ConfigError(
            f"--spec-draft-vocab {shown(option)}: give auto, full, a number of tokens, or a file "
            "of token ids"
        )


def _is_number(text: str) -> bool:
    """With few digits: Python refuses to read thousands of them."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _covering(n_vocab: int, counts: Counts) -> Ints | None:
    total = int(counts.sum())
    if total < ENOUGH_COUNTED:
        return None
    covered = np.cumsum(np.sort(counts)[::-1])
    n = int(np.searchsorted(covered, COVERED * total)) + 1
    n = -(-n // UNIT) * UNIT
    return _most_useful(n, counts) if n <= _SHORT_ENOUGH * n_vocab else None


def _most_useful(n: int, counts: Counts) -> Ints:
    """By count, then by id: vocabularies are mostly numbered by how frequent tokens are."""
    order = np.argsort(-counts, kind="stable")
    return np.sort(order[:n]).astype(np.int32)


def _from_file(path: Path, n_vocab: int) -> Ints:
    try:
        words = read_whole(path, _MAX_FILE).decode().replace(",", " ").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(
            f"--spec-draft-vocab: {shown_path(path)} cannot be read: {reason}"
        ) from None
    ids = set()
    for word in words:
        if not _is_number(word) or int(word) >= n_vocab:
            raise ConfigError(
                f"--spec-draft-vocab: {shown_path(path)} holds {shown(word)}, which is not a token "
                f"id below {n_vocab}"
            )
        ids.add(int(word))
    if not ids:
        raise ConfigError(f"--spec-draft-vocab: {shown_path(path)} names no token")
    return np.array(sorted(ids), np.int32)
