"""Errors name arguments as Python has them, not as flags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ..errors import NextnError
from .generation_options import NAMES
from .load_options import LoadOptions

# Arguments whose flags have other names; all others are spelled alike, but for underscores.
FLAGS: Final = {
    "-c": "n_ctx",
    "-m": "path",
    "-md": "draft",
    "-t": "threads",
    "--spec-type": "speculation",
    "--spec-draft-n-max": "draft_max",
    "--spec-draft-n-min": "draft_min",
    "--spec-draft-p-min": "draft_p_min",
    "--parallel": "parallel",
    "--device": "device",
}
_ARGUMENTS: Final = NAMES | LoadOptions.__annotations__.keys()
_FLAG: Final = re.compile(r"(?<![\w-])--?[a-z][a-z-]*(?![\w-])")


def argument_names(message: str) -> str:
    """Flags that no argument stands for are left as they are."""
    return _FLAG.sub(lambda found: _argument(found.group()), message)


def _argument(flag: str) -> str:
    name = flag.removeprefix("--").replace("-", "_")
    return FLAGS.get(flag) or (name if name in _ARGUMENTS else flag)


@contextmanager
def errors_in_python() -> Iterator[None]:
    try:
        yield
    except NextnError as error:
        error.args = (argument_names(str(error)),)
        raise
