"""How long the thoughts of a text may be."""

from __future__ import annotations

from msgspec import Struct

from ..errors import ConfigError


class ThoughtLimit(Struct, frozen=True):
    """Of all thoughts of a text together."""

    n_max: int  # tokens
    opening: str  # marks
    closing: str
    is_open: bool = False  # the prompt ends within a thought
    message: str = ""  # that ends a thought which is too long, before the mark

    def __post_init__(self) -> None:
        if self.n_max < 0:
            raise ConfigError(f"the budget of thoughts must be at least 0, got {self.n_max}")


def limit_thoughts(
    n_max: int | None, marks: tuple[str, str] | None, prompt: str, message: str = ""
) -> ThoughtLimit | None:
    """Of a reply to this prompt. `n_max`: None or below 0: any number. `marks`: of thoughts, None:
    the model has none."""
    if n_max is None or n_max < 0 or marks is None:
        return None
    is_open = prompt.rstrip().endswith(marks[0])
    return ThoughtLimit(n_max, *marks, is_open=is_open, message=message)
