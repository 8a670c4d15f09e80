"""A user's own texts for training: files of plain text, or JSON lines of texts or token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...core.errors import ConfigError
from ...core.runtime import Runtime
from .text_store import TextStore

PIECE: Final = 512  # tokens of a text, at most
CONTEXT: Final = PIECE // 2  # of it, at most, before what counts
SHORTEST: Final = 16
MAX_BYTES: Final = 1 << 28  # of a file
JSON_LINES: Final = (".jsonl", ".ndjson")
KIND: Final = "own"


class OwnText(NamedTuple):
    tokens: list[int]
    first: int  # that counts


def text_files(path: Path) -> list[Path]:
    """The file, or all files below the folder."""
    if not path.exists():
        raise ConfigError(f"--texts: there is no file or folder {path}")
    found = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    if not found:
        raise ConfigError(f"--texts: there is no file in {path}")
    return found


def digest_of(path: Path) -> str:
    """Equal where all texts are."""
    digest = hashlib.sha256()
    for file in text_files(path):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def store_texts(path: Path, runtime: Runtime, store: TextStore, n_tokens: int) -> int:
    """Cut all into pieces and add them, up to so many tokens (0: all of them), beginning behind
    those that are there. Returns the number of files that are no texts."""
    n_left_out, n_done = 0, len(store.texts)
    for file in text_files(path):
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{file} is larger than {MAX_BYTES >> 20} MiB; split it")
        try:
            text = file.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            n_left_out += 1
            continue
        for piece in _pieces(file, text, runtime):
            if n_tokens and store.n_tokens >= n_tokens:
                return n_left_out
            if n_done:
                n_done -= 1
            else:
                store.add(piece.tokens, piece.first, KIND)
    return n_left_out


def _pieces(file: Path, text: str, runtime: Runtime) -> Iterator[OwnText]:
    whole = _of_lines(file, text, runtime) if file.suffix.lower() in JSON_LINES else None
    if whole is None:
        whole = iter([OwnText(_encode(text, runtime), 1)])
    for tokens, first in whole:
        begin = max(0, first - CONTEXT)
        for at in range(begin, len(tokens), PIECE):
            piece = tokens[at : at + PIECE]
            counted = max(1, first - at)
            if len(piece) >= SHORTEST and counted < len(piece):
                yield OwnText(piece, counted)


def _of_lines(file: Path, text: str, runtime: Runtime) -> Iterator[OwnText]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield _of_line(line, runtime)
            except ConfigError as error:
                raise ConfigError(f"{file}, line {number}: {error}") from None


def _of_line(line: str, runtime: Runtime) -> OwnText:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if isinstance(value, str):
        value = {"text": value}
    text, ids, model = (
        value.get(n) if isinstance(value, dict) else None for n in ("text", "tokens", "model")
    )
    if isinstance(text, str):
        return OwnText(_encode(text, runtime), 1)
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise ConfigError("an object with text, or with tokens (a list of ids), is expected")
    if isinstance(model, str) and model != runtime.fingerprint:
        raise ConfigError(
            f"these tokens were recorded with another model than {runtime.name}; give files of one "
            "model"
        )
    wrong = [token for token in ids if not 0 <= token < runtime.n_vocab]
    if wrong:
        raise ConfigError(
            f"token {wrong[0]} is none of the {runtime.n_vocab} of {runtime.name}: these ids are "
            "of another tokenizer; give the texts themselves"
        )
    first = value.get("n_prompt", 1)
    return OwnText(ids, first if type(first) is int and first > 0 else 1)


def _encode(text: str, runtime: Runtime) -> list[int]:
    return runtime.tokenizer.encode(text, parse_special=False)
