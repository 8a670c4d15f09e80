"""The text as chunks of tokens, cut and scored as llama-perplexity does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...core.errors import ConfigError, ModelError, NextnError
from ...core.gguf.checks import check_vocabulary
from ...core.gguf.printable import printable
from ...core.gguf.reader import GgufFile, open_gguf
from ...core.tokenizer import Tokenizer, load_tokenizer

MIN_CONTEXT: Final = 8  # tokens of a chunk, of which 3 are scored


def read_tokenizer(path: Path, n_ctx: int) -> Tokenizer:
    """The tokenizer of a model that can read chunks of `n_ctx` tokens. No weight is read."""
    with open_gguf(path) as file:
        if not check_vocabulary(file):
            raise ModelError(f"{file.label}: has no tokenizer, so it is no model that reads text")
        _check_context(file, n_ctx)
        try:
            return load_tokenizer(file.metadata)
        except NextnError as error:  # of two files one is to blame
            text = str(error).removeprefix(f"{file.label}: ")
            raise type(error)(f"{file.label}: {text}") from None


def _check_context(file: GgufFile, n_ctx: int) -> None:
    most = file.metadata.int("context_length", low=1)
    if n_ctx > most:
        raise ConfigError(
            f"{file.label}: its context has {most} tokens, fewer than the {n_ctx} of a chunk: "
            f"give -c {most} or less"
        )


def check_same_tokens(tokenizer: Tokenizer, base: Tokenizer) -> None:
    """Refuse two models whose token ids mean different texts."""
    if tokenizer.n_vocab != base.n_vocab:
        raise ModelError(
            "the models have different tokenizers: the measured one has "
            f"{tokenizer.n_vocab} tokens, the base {base.n_vocab}"
        )
    for token, (mine, other) in enumerate(zip(tokenizer.tokens, base.tokens, strict=True)):
        if mine != other:
            raise ModelError(
                f"the models have different tokenizers: token {token} of the measured one is "
                f"{printable(mine)}, of the base {printable(other)}"
            )


def first_scored_row(n_ctx: int) -> int:
    """The row of a chunk whose next token is the first one that counts."""
    return n_ctx // 2


def cut(
    text: str, tokenizer: Tokenizer, n_ctx: int, n_chunks: int | None = None
) -> list[Sequence[int]]:
    """Chunks of `n_ctx` tokens, at most `n_chunks`; what is left behind the last one is dropped.

    Where the tokenizer begins texts with BOS, each chunk does: in place of its first token. Control
    tokens that the text spells out are plain text.
    """
    begins = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    tokens = begins + tokenizer.encode(text, add_special=False, parse_special=False)
    starts = range(0, len(tokens) - n_ctx + 1, n_ctx)[:n_chunks]
    if not starts:
        raise ConfigError(
            f"the text is too short: it has {len(tokens)} tokens, and a chunk {n_ctx} (-c)"
        )
    return [begins + tokens[start + len(begins) : start + n_ctx] for start in starts]
