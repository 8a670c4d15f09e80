"""What a reply says, read in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from nextn.core.server.reply import ARGUMENTS, CALL, CONTENT, REASONING, ReplyParser, ReplyPiece

MARKS = ("<think>", "</think>")
WEATHER = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


class Told:
    """Of a text that comes in pieces, which begin at each of these characters. `is_cut`: the model
    would have gone on."""

    def __init__(self, text: str, cuts: Iterable[int], *, is_cut: bool = False, **how: Any) -> None:
        parser = ReplyParser(schemas={"weather": WEATHER}, **how)
        edges = [0, *sorted(cuts), len(text)]
        pieces = [p for a, b in itertools.pairwise(edges) for p in parser.feed(text[a:b])]
        self.pieces = _joined([*pieces, *parser.end(is_cut=is_cut)])

    @property
    def content(self) -> str:
        return "".join(piece.text for piece in self.pieces if piece.kind == CONTENT)

    @property
    def reasoning(self) -> str:
        return "".join(piece.text for piece in self.pieces if piece.kind == REASONING)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Names and arguments."""
        found: list[tuple[str, str]] = []
        for piece in self.pieces:
            if piece.kind == CALL:
                assert piece.call == len(found)
                found.append((piece.text, ""))
            elif piece.kind == ARGUMENTS:
                assert piece.call == len(found) - 1
                name, arguments = found[piece.call]
                found[piece.call] = name, arguments + piece.text
        return found


def _joined(pieces: list[ReplyPiece]) -> list[ReplyPiece]:
    found: list[ReplyPiece] = []
    for piece in pieces:
        assert piece.text or piece.kind == CALL
        if piece.kind != CALL and found and found[-1].kind == piece.kind:
            found[-1] = piece._replace(text=found[-1].text + piece.text)
        else:
            found.append(piece)
    return found
