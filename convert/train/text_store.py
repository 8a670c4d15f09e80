"""Token ids of texts on disk, to which a run adds one text after the other.

What was added is there after a kill; a text that was being added then is dropped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from ...core.backend.step import Ints


class StoredText(Struct, frozen=True):
    kind: str
    first: int  # of its tokens, the first that counts
    n: int
    at: int  # of its first token among those of all texts


class TextStore:
    def __init__(self, folder: Path) -> None:
        self._ids, self._index = folder / "texts.i32", folder / "texts.jsonl"
        self.texts: list[StoredText] = []
        self.n_tokens = self.n_answered = 0
        self._read()

    def add(self, tokens: Sequence[int], first: int, kind: str) -> None:
        text = StoredText(kind, first, len(tokens), self.n_tokens)
        with self._ids.open("ab") as ids:
            ids.write(np.asarray(tokens, "<i4").tobytes())
        with self._index.open("ab") as index:  # last: only what it names is there
            index.write(msgspec.json.encode(text) + b"\n")
        self._count(text)

    def read(self) -> Ints:
        """The tokens of all texts."""
        return np.fromfile(self._ids, "<i4", self.n_tokens)

    @property
    def kinds(self) -> dict[str, int]:
        """Texts of each."""
        return dict(Counter(text.kind for text in self.texts))

    def _count(self, text: StoredText) -> None:
        self.texts.append(text)
        self.n_tokens += text.n
        self.n_answered += text.n - text.first

    def _read(self) -> None:
        if not self._index.exists():
            self._ids.write_bytes(b"")
            return
        n_good = 0
        n_there = self._ids.stat().st_size // 4
        for line in self._index.read_bytes().splitlines(keepends=True):
            try:
                text = msgspec.convert(json.loads(line), StoredText)
            except (ValueError, msgspec.ValidationError):
                break
            if not line.endswith(b"\n") or text.at != self.n_tokens or text.at + text.n > n_there:
                break
            self._count(text)
            n_good += len(line)
        with self._index.open("r+b") as index:
            index.truncate(n_good)
        with self._ids.open("r+b") as ids:
            ids.truncate(4 * self.n_tokens)
