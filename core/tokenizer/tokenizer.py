"""The tokenizer that everything above uses; `loading.load_tokenizer` makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakMethod

from ..errors import ConfigError
from .algorithm import Algorithm
from .reply_marks import REPLY_MARKS
from .special import SpecialTokens
from .stream import StreamDecoder
from .vocabulary import HIDDEN, Kind, Vocabulary


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What the file says about the tokenizer as a whole."""

    model: str  # tokenizer.ggml.model
    pre: str  # tokenizer.ggml.pre; "default" where the model has none
    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool


class _Pieces(dict[int, bytes]):
    """Bytes of tokens by id, each computed on first use.

    The tokenizer is held weakly, so that dropping it frees it without the garbage collector.
    """

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self._spell = WeakMethod(spell)

    def __missing__(self, token_id: int) -> bytes:
        spell = self._spell()
        assert spell is not None, "the tokenizer owns this object"
        piece = self[token_id] = spell(token_id)
        return piece


class Tokenizer:
    def __init__(
        self,
        info: TokenizerInfo,
        vocabulary: Vocabulary,
        specials: SpecialTokens,
        algorithm: Algorithm,
    ) -> None:
        self.model = info.model
        self.pre = info.pre
        self.bos_id = info.bos_id
        self.eos_id = info.eos_id
        self.add_bos = info.add_bos
        self.add_eos = info.add_eos
        self.eog_ids = vocabulary.eog_ids
        self.fim_ids = vocabulary.fim_ids
        self.n_vocab = len(vocabulary.tokens)
        self._vocabulary = vocabulary
        self._specials = specials
        self._algorithm = algorithm
        index = vocabulary.index
        self._shown = frozenset(index[text] for text in REPLY_MARKS if text in index)
        self._all_pieces = _Pieces(self._spell)
        self._pieces = _Pieces(self._spell_visible)

    @property
    def tokens(self) -> Sequence[str]:
        """All tokens by id, as the vocabulary has them; must not be changed."""
        return self._vocabulary.tokens

    @property
    def adds_space(self) -> bool:
        """Encoding puts a space in front of a text, which decoding takes away."""
        return self._algorithm.adds_space

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        continues: bool = False,
    ) -> list[int]:
        """`add_special`: BOS and EOS as the file says. `parse_special`: control tokens
        spelled out in the text count as such; off for text from outside. User-defined tokens
        always do. `continues`: other text, not a special token, is right before it."""
        ids: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            ids.append(self.bos_id)
        after_special = not continues
        for part in self._specials.split(_sound(text), parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._algorithm.encode(part, after_special)
            after_special = isinstance(part, int)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(
        self, ids: Iterable[int], *, show_special: bool = False, continues: bool = False
    ) -> str:
        """Bytes that are no character become U+FFFD. As in llama.cpp, a SentencePiece text loses
        one space in front of its first token; `continues` says that the ids follow other text,
        where that space is real."""
        pieces = [self.piece(token_id, show_special=show_special) for token_id in ids]
        if pieces and self._drops_space(continues):
            pieces[0] = pieces[0].removeprefix(b" ")
        return b"".join(pieces).decode("utf-8", "replace")

    def piece(self, token_id: int, *, show_special: bool = False) -> bytes:
        """The bytes of one token; none for control tokens, unless they are to be shown or mark
        thoughts or calls."""
        return (self._all_pieces if show_special else self._pieces)[token_id]

    def stream(self, *, show_special: bool = False, continues: bool = False) -> StreamDecoder:
        """Pushing all of `ids` gives `decode(ids)`; for text that is being generated after a
        prompt, set `continues`."""
        piece = partial(self.piece, show_special=show_special)
        return StreamDecoder(piece, self._drops_space(continues))

    def token(self, token_id: int) -> str:
        """The text of a token as the vocabulary has it."""
        self._check(token_id)
        return self._vocabulary.tokens[token_id]

    def find_token(self, text: str) -> int | None:
        """The id of the token that the vocabulary spells exactly so."""
        return self._vocabulary.index.get(text)

    def kind(self, token_id: int) -> Kind:
        self._check(token_id)
        return Kind(self._vocabulary.kinds[token_id])

    def _check(self, token_id: int) -> None:
        if not 0 <= token_id < self.n_vocab:
            raise ConfigError(f"token id {token_id} is not in 0 ... {self.n_vocab - 1}")

    def _drops_space(self, continues: bool) -> bool:
        return self._algorithm.adds_space and not continues

    def _spell_visible(self, token_id: int) -> bytes:
        is_hidden = self.kind(token_id) in HIDDEN and token_id not in self._shown
        return b"" if is_hidden else self._all_pieces[token_id]

    def _spell(self, token_id: int) -> bytes:
        self._check(token_id)
        text = self._vocabulary.tokens[token_id]
        kind = self._vocabulary.kinds[token_id]
        if kind in (Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED):
            return text.encode()
        if kind == Kind.BYTE:
            return bytes([int(text[3:5], 16)])
        return self._algorithm.spell(text) if kind == Kind.NORMAL else b""


def _sound(text: str) -> str:
    """Lone surrogates, which JSON can carry, are no text: U+FFFD for each."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
