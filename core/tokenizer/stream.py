"""Tokens to text, one by one, never splitting a character."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable


class StreamDecoder:
    """Feed it ids in order; what `push` and `finish` return is the text of them all.

    Bytes that may still become a character wait; those that cannot turn into U+FFFD.
    """

    def __init__(self, piece: Callable[[int], bytes], drops_space: bool) -> None:
        """`drops_space`: take one space off the first token, the one that encoding put there."""
        self._piece = piece
        self._drops_space = drops_space
        self._held = b""  # the beginning of a character

    def push(self, token_id: int) -> str:
        piece = self._piece(token_id)
        if self._drops_space:
            self._drops_space = False
            piece = piece.removeprefix(b" ")
        data = self._held + piece if self._held else piece
        text, n_used = utf_8_decode(data, "replace", False)
        self._held = data[n_used:]
        return text

    def finish(self) -> str:
        """What still waited; the decoder can then be used for a new text."""
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")
