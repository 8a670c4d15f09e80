"""What the two families of vocabularies have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Algorithm(ABC):
    """How plain text, free of special tokens, becomes ids, and what a normal token spells."""

    # Whether text gets a space in front, which decoding takes away again.
    adds_space = False

    @abstractmethod
    def encode(self, text: str, after_special: bool) -> list[int]:
        """`after_special`: the text starts the prompt or follows a special token."""

    @abstractmethod
    def spell(self, token: str) -> bytes:
        """The bytes that a token of the normal kind stands for."""
