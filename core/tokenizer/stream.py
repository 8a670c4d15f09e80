"""Tokens to text, one by one, never splitting a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Feed it ids in order; what `push` and `finish` return is the text of them all.

    Bytes that may still become a character wait; those that cannot turn into U+FFFD.
    """

    def __init__(self, piece: Callable[[int], bytes], drops_space: bool) -> None:
        """`drops_space`: take one space off the first token, the one that encoding put there."""
        self._piece = piece
        self._drops_space = drops_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        piece = self._piece(token_id)
        if self._drops_space:
            self._drops_space = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What still waited; the decoder can then be used for a new text."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
