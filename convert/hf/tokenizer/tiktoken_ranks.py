"""tiktoken.model, which Kimi has instead of a tokenizer.json: byte strings with ranks, from which
merges follow: a token is made of the two parts that all merges before its own leave of it.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from ....core.gguf.printable import printable
from ....core.tokenizer.bpe import BYTE_CHARS
from ....core.tokenizer.vocabulary import Kind
from .vocab_files import CheckpointVocab, TokenizerFiles, TokenPiece

RANKS: Final = "tiktoken.model"


def read_ranks(files: TokenizerFiles, text: str, n_rows: int, pre: str) -> CheckpointVocab:
    ranks = _parse(files, text)
    pieces: dict[int, TokenPiece] = {
        rank: (_chars(token), int(Kind.NORMAL), 0.0) for token, rank in ranks.items()
    }
    for token_id in range(len(ranks), n_rows):  # as the model's own code names them
        pieces[token_id] = (f"<|reserved_token_{token_id}|>", int(Kind.CONTROL), 0.0)
    out = CheckpointVocab.of("gpt2", pieces, files, n_rows, RANKS)
    merges: list[str] = []
    for token, rank in ranks.items():
        parts = _parts(token, rank, ranks)
        if len(parts) == 2:
            merges.append(f"{_chars(parts[0])} {_chars(parts[1])}")
    out.merges, out.pre = merges, pre
    return out


def _parse(files: TokenizerFiles, text: str) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for n, line in enumerate(text.splitlines()):
        coded, _, rank = line.partition(" ")
        try:
            token = base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError):
            token = b""
        if not token or rank != str(len(ranks)) or token in ranks:
            raise files.error(RANKS, f"line {n + 1} is {printable(line)}, not a token and its rank")
        ranks[token] = len(ranks)
    return ranks


def _parts(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    """Merge by ranks below `rank` as long as there is a pair that makes a token."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        best, at = rank, -1
        for i in range(len(parts) - 1):
            found = ranks.get(parts[i] + parts[i + 1], rank)
            if found < best:
                best, at = found, i
        if at < 0:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _chars(token: bytes) -> str:
    return "".join(BYTE_CHARS[byte] for byte in token)
