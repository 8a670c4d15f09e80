"""A table of a report, as Markdown that reads as plain text and as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Self, TypeVar

from msgspec import Struct

T = TypeVar("T")


class TextTable(Struct):
    """Cells are plain text; an empty cell is an unknown value."""

    title: str
    heads: list[str]
    rows: list[list[str]]

    @classmethod
    def of(
        cls, title: str, items: Iterable[T], columns: Sequence[tuple[str, Callable[[T], str]]]
    ) -> Self:
        """A row for each item, without the columns that are empty in all rows."""
        rows = [[cell(item) for _, cell in columns] for item in items]
        return cls(title, [head for head, _ in columns], rows).trimmed()

    def trimmed(self) -> Self:
        kept = [i for i in range(len(self.heads)) if any(row[i] for row in self.rows)]
        rows = [[row[i] for i in kept] for row in self.rows]
        return type(self)(self.title, [self.heads[i] for i in kept], rows)

    def markdown(self) -> Iterator[str]:
        """Lines without newlines: text to the left, numbers to the right, columns aligned."""
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (self.heads, *self.rows)]
        widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(self.heads))]
        is_text = [_is_text([row[i] for row in cells[1:]]) for i in range(len(widths))]
        for number, row in enumerate(cells):
            padded = [
                cell.ljust(width) if text else cell.rjust(width)
                for cell, width, text in zip(row, widths, is_text, strict=True)
            ]
            yield f"| {' | '.join(padded)} |"
            if not number:
                rules = [
                    "-" * (width + 2) if text else "-" * (width + 1) + ":"
                    for width, text in zip(widths, is_text, strict=True)
                ]
                yield f"|{'|'.join(rules)}|"

    def html(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.heads)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        return f'<div class="scroll"><table>{table}</table></div>'


def _is_text(cells: Sequence[str]) -> bool:
    """A server's address begins with a digit and is no number."""
    return any(cell and (":" in cell or not cell[0].isdigit()) for cell in cells)
