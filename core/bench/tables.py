"""Tables in Markdown that read as plain text, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Table = list[list[str]]


def markdown(table: Table) -> Iterator[str]:
    """Text to the left, numbers to the right; columns of equal width."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in table]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(cells[0]))]
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


def _is_text(cells: Sequence[str]) -> bool:
    """The address of a server is no number."""
    return any(cell and (":" in cell or not cell[0].isdigit()) for cell in cells)
