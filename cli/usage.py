"""Usage errors: typer's several lines become one, with the nearest name that exists."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from ..core.errors import ConfigError, NextnError

# The base class of every usage error. typer exports `BadParameter` alone; its parent has that
# name since typer carries its own parser, and had it when the parser was click's.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def with_dashes(message: str) -> str:
    """The core names options without the dashes of flags."""
    is_flag = message.startswith(("spec-", "lookup-", "cache-ram", "hf-"))
    return f"--{message}" if is_flag else message


@contextmanager
def flag_errors(spell: Callable[[str], str] = with_dashes) -> Iterator[None]:
    """A ConfigError inside is a usage error. `spell`: gives the options in its message their flags'
    names."""
    try:
        yield
    except ConfigError as error:
        raise typer.BadParameter(spell(str(error))) from None


def describe(error: Any) -> str:
    """One line without a prefix. `error` is a UsageError, which typer does not type."""
    if "possibilities" in vars(error):  # only "no such option" has them
        return unknown_option(error.option_name, error.ctx)
    param = getattr(error, "param", None)
    if param is None or not error.message:  # no message: it is missing
        message = error.format_message().removeprefix("Invalid value: ")
        message = re.sub(r"\.? Did you mean (.*)\?$", r" (did you mean \1?)", message)
        return lowered(message)
    return f"invalid value for {param.opts[0]}: {lowered(error.message)}"


def lowered(message: str) -> str:
    return message[:1].lower() + message[1:].rstrip(".")


def unknown_option(name: str, context: Any) -> str:
    words = [spelling for spelling in spellings(context) if len(spelling) > 2]
    words.append("--help")
    longer = [word for word in words if word.startswith(name)]
    near, far = (difflib.get_close_matches(name, words, n=1, cutoff=least) for least in (0.8, 0.6))
    nearest = near or longer or far
    return f"no such option {name}" + (f" (did you mean {nearest[0]}?)" if nearest else "")


def spellings(context: Any) -> list[str]:
    params = context.command.params
    return [name for param in params for name in (*param.opts, *param.secondary_opts)]


def failure_line(error: Exception) -> str:
    """Return one line for the user: known failures as they are, bugs with a hint to --debug."""
    match error:
        case NextnError():
            return str(error)
        case FileNotFoundError(filename=name) if name is not None:
            return f"no such file: {name}"
        case IsADirectoryError(filename=name) if name is not None:
            return f"{name} is a directory, not a file"
        case PermissionError(filename=name) if name is not None:
            return f"no permission to open {name}"
        case OSError(strerror=str(reason)):
            what = "" if error.filename is None else f"{error.filename}: "
            return f"{what}{reason[:1].lower()}{reason[1:]}"
        case MemoryError():
            return "out of memory"
    return f"internal error, {type(error).__name__}: {error} (--debug shows where)"
