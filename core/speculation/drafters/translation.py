"""One text in the tokens of two vocabularies, and drafts translated from one to the other.

The draft model reads the target's text, byte for byte, cut into its own tokens; its drafts become
bytes, and these the target's tokens. A cut that the model would not have made itself costs a token
of a draft at worst: the target's own tokens are never changed.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from ...errors import ConfigError
from ...tokenizer.vocabulary import HIDDEN, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...tokenizer import Tokenizer

MAX_OPEN: Final = 64  # bytes at the end of a text whose cut may still change
NO_TOKEN: Final = -1
_SILENT: Final = -2  # a special token that the other model does not need
_NEVER_IN_UTF8: Final = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))
_WHOLE: Final = (Kind.NORMAL, Kind.USER_DEFINED)  # preferred over byte tokens
# Before the space between two words: hardly any tokenizer merges across it. Line ends are joined
# with the mark before them by some tokenizers and with the indent behind them by others.
_WORD_START: Final = re.compile(rb"(?<=[^ \n\t\r])(?= [^ \n\t\r])")
_LINE_START: Final = re.compile(rb"(?<=[0-9A-Za-z_\x80-\xff])(?=\n)|(?<=\n)(?=[^ \n\t\r])")
_BROKEN: Final = re.compile("([\udc80-\udcff]+)")  # bytes outside characters


class DraftedPiece(NamedTuple):
    """A drafted token: its bytes, or the target's token if it is a special one, and its chance."""

    data: bytes
    special: int
    chance: float


class Speller:
    """A vocabulary from bytes to tokens, broken characters included."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.plain: dict[bytes, int] = {}  # tokens by what they spell
        for token in range(tokenizer.n_vocab):
            kind = tokenizer.kind(token)
            data = b"" if kind in HIDDEN else tokenizer.piece(token)
            known = self.plain.get(data)
            if data and (known is None or (kind in _WHOLE and tokenizer.kind(known) not in _WHOLE)):
                self.plain[data] = token
        self._byte_ids = [self.plain.get(bytes([byte]), NO_TOKEN) for byte in range(256)]

    def find_missing_bytes(self) -> list[int]:
        return [
            byte
            for byte, token in enumerate(self._byte_ids)
            if token == NO_TOKEN and byte not in _NEVER_IN_UTF8
        ]

    def encode(self, data: bytes, *, continues: bool) -> list[int]:
        ids: list[int] = []
        for part in _BROKEN.split(data.decode("utf-8", "surrogateescape")):
            if not part:
                continue
            if "\udc80" <= part[0] <= "\udcff":
                found = [self._byte_ids[ord(char) - 0xDC00] for char in part]
                ids += [token for token in found if token != NO_TOKEN]
            else:
                ids += self._tokenizer.encode(
                    part, add_special=False, parse_special=False, continues=continues
                )
            continues = True
        return ids


class Translator:
    """Between two vocabularies; one for all sequences."""

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self.target, self.draft = target, draft
        self._to_target, self.to_draft = Speller(target), Speller(draft)
        if missing := self.to_draft.find_missing_bytes():
            raise ConfigError(
                f"its vocabulary has no token for {len(missing)} of the 256 bytes "
                f"(0x{missing[0]:02X} for one), so that text cannot be translated for it"
            )
        self.specials = {
            token: _twin(target, draft, token)
            for token in range(target.n_vocab)
            if target.kind(token) in HIDDEN
        }
        self.pairs = self._find_pairs()

    def piece(self, token: int, chance: float) -> DraftedPiece | None:
        """A token of the draft model; None if it means nothing to the target."""
        if not 0 <= token < self.draft.n_vocab:
            return None
        special = int(self.pairs[token])
        if self.draft.kind(token) in HIDDEN:
            return None if special == NO_TOKEN else DraftedPiece(b"", special, chance)
        data = self.draft.piece(token)
        return DraftedPiece(data, NO_TOKEN, chance) if data else None

    def back(self, pieces: Sequence[DraftedPiece]) -> tuple[list[int], list[float]]:
        """The target's tokens whose bytes are complete, and the chance of each."""
        ids: list[int] = []
        chances: list[float] = []
        start = 0
        while start < len(pieces):
            if pieces[start].special != NO_TOKEN:
                ids.append(pieces[start].special)
                chances.append(pieces[start].chance)
                start += 1
                continue
            end = start
            while end < len(pieces) and pieces[end].special == NO_TOKEN:
                end += 1
            is_whole = self._back_plain(pieces[start:end], ids, chances)
            if not is_whole:
                break
            start = end
        return ids, chances

    def _back_plain(
        self, pieces: Sequence[DraftedPiece], ids: list[int], chances: list[float]
    ) -> bool:
        """Returns whether the tokens cover all bytes."""
        data = b"".join(piece.data for piece in pieces)
        whole = data[: _end_of_characters(data)]
        starts = [0, *accumulate(len(piece.data) for piece in pieces)][:-1]
        at = 0
        for token in self._to_target.encode(whole, continues=True):
            spelled = self.target.piece(token)
            if not spelled or not whole.startswith(spelled, at):
                break
            end = at + len(spelled)
            within = pieces[bisect_left(starts, at) : bisect_left(starts, end)]
            ids.append(token)
            chances.append(math.prod(piece.chance for piece in within))
            at = end
        return at == len(data)

    def _find_pairs(self) -> NDArray[np.int64]:
        """The target's token with the same text, for each token of the draft model."""
        pairs = np.full(self.draft.n_vocab, NO_TOKEN)
        ours = self._to_target.plain
        for data, token in self.to_draft.plain.items():
            pairs[token] = ours.get(data, NO_TOKEN)
        for ours_token, twin in self.specials.items():
            if twin is not None and twin >= 0 and self.draft.kind(twin) in HIDDEN:
                pairs[twin] = ours_token
        return pairs


class Translation:
    """One sequence as the draft model reads it; `follow` processes only new tokens."""

    def __init__(self, translator: Translator) -> None:
        self._translator = translator
        draft = translator.draft
        has_bos = draft.add_bos and draft.bos_id is not None
        self.ids: list[int] = [draft.bos_id] if has_bos and draft.bos_id is not None else []
        self.n_final = len(self.ids)  # the ids behind these may change as the text grows
        self._n_seen = 0  # of the target's tokens
        self._open = b""  # bytes whose tokens may still change
        self._continues = False  # text, not a special token, is before these
        self._drops_space = translator.target.adds_space  # that encoding had put in front

    def follow(self, tokens: Sequence[int]) -> None:
        """`tokens`: all of the target's, as far as the text goes."""
        new = tokens[self._n_seen :]
        if not len(new):
            return
        translator, data = self._translator, []
        for place, token in enumerate(new, self._n_seen):
            if token >= translator.target.n_vocab:  # padding that has no text
                continue
            if token not in translator.specials:
                piece = translator.target.piece(token)
                data.append(piece.removeprefix(b" ") if self._drops_space else piece)
                self._drops_space = False
                continue
            twin = translator.specials[token]
            if twin is None:  # no counterpart: its text is used
                data.append(translator.target.piece(token, show_special=True))
            elif twin != _SILENT and (place or twin not in self.ids[:1]):  # BOS may be there
                self._open += b"".join(data)
                data.clear()
                self._add_special(twin)
                self._drops_space = translator.target.adds_space
        self._n_seen = len(tokens)
        self._open += b"".join(data)
        self._cut()
        del self.ids[self.n_final :]
        self.ids += self._encode(self._open)

    def _add_special(self, token: int) -> None:
        self._settle(len(self._open))
        self.ids.append(token)
        self.n_final += 1
        self._continues = False

    def _cut(self) -> None:
        """Settle all but the last word, and of a very long word all but its end."""
        n_before = max(0, len(self._open) - MAX_OPEN)
        end = self._open[n_before:]
        starts = [match.start() for match in _WORD_START.finditer(end)]
        if not starts and n_before:
            starts = [m.start() for m in _LINE_START.finditer(end)] or [_near_middle(end)]
        if starts:
            self._settle(n_before + starts[-1])

    def _settle(self, n_bytes: int) -> None:
        head, self._open = self._open[:n_bytes], self._open[n_bytes:]
        if head:
            del self.ids[self.n_final :]
            self.ids += self._encode(head)
            self.n_final = len(self.ids)
            self._continues = True

    def _encode(self, data: bytes) -> list[int]:
        return self._translator.to_draft.encode(data, continues=self._continues)


def _twin(target: Tokenizer, draft: Tokenizer, token: int) -> int | None:
    """The draft model's token for a special one of the target; None: its text is used."""
    if token == target.bos_id:
        return draft.bos_id if draft.add_bos and draft.bos_id is not None else _SILENT
    if token == target.eos_id and draft.eos_id is not None:
        return draft.eos_id
    twin = draft.find_token(target.token(token))
    if twin is not None and draft.kind(twin) in (*HIDDEN, Kind.USER_DEFINED):
        return twin
    return None


def _near_middle(data: bytes) -> int:
    """A place between two characters."""
    return next((i for i in range(len(data) // 2, 0, -1) if data[i] & 0xC0 != 0x80), 1)


def _end_of_characters(data: bytes) -> int:
    """Without a character that has only begun."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            n = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return len(data) if n <= back else len(data) - back
    return len(data)
