"""`python -m nextn.convert.nano --out FILE`: make the bundled model out of Python's sources."""

from __future__ import annotations

from .one_line_errors import in_one_line


def main() -> None:
    from .command import main as make  # brings torch

    make()


if __name__ == "__main__":
    in_one_line("python -m nextn.convert.nano", main)
