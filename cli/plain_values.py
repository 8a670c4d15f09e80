"""Flags and arguments that are right are taken without typer's validators.

typer makes one with pydantic for each flag when a command runs. Importing that, and making a
hundred, takes longer than loading a small model. What is wrong still gets typer's message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import typer.core

_UNSURE: Final = object()
_NUMBERS: Final[dict[Any, re.Pattern[str]]] = {
    int: re.compile(r"[+-]?[0-9]+"),
    float: re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"),
}


def plain_value(value: Any, annotation: Any, limits: Any) -> Any:
    """Return what the text of a flag stands for, `_UNSURE` where typer has to look at it."""
    if value is None or type(value) is annotation:
        return value
    if get_origin(annotation) is list:
        items = [plain_value(each, get_args(annotation)[0], limits) for each in value]
        return _UNSURE if _UNSURE in items else items
    if annotation is Path:
        return Path(value)
    if annotation not in _NUMBERS or not _NUMBERS[annotation].fullmatch(str(value)):
        return _UNSURE
    number = annotation(value)
    is_low = limits.min is not None and number < limits.min
    is_high = limits.max is not None and number > limits.max
    return _UNSURE if is_low or is_high else number


def process(param: Any, context: Any, value: Any, check: Callable[[Any, Any], Any]) -> Any:
    """What typer's `process_value` does; `check` is that."""
    described = param.type_descriptor
    found = plain_value(value, described.annotation, described.parameter_info)
    if found is None and getattr(param, "multiple", False):
        found = ()
    if found is _UNSURE or (param.required and param.value_is_missing(found)):
        return check(context, value)
    return found if param.callback is None else param.callback(context, param, found)


class PlainOption(typer.core.TyperOption):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return process(self, ctx, value, super().process_value)


class PlainArgument(typer.core.TyperArgument):
    def process_value(self, ctx: Any, value: Any) -> Any:
        return process(self, ctx, value, super().process_value)


_PLAIN: Final[dict[type, type]] = {
    typer.core.TyperOption: PlainOption,
    typer.core.TyperArgument: PlainArgument,
}


def take_plainly(param: Any) -> Any:
    """Return the parameter, made one of those above: typer offers no way to choose the class."""
    param.__class__ = _PLAIN.get(type(param), type(param))
    return param


class PlainParams:
    """For commands and groups."""

    params: list[Any]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for param in self.params:
            take_plainly(param)

    def get_params(self, ctx: Any) -> list[Any]:
        """Those of completion are added later."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        return [take_plainly(param) for param in found]

    def get_help_option(self, ctx: Any) -> Any:
        found = super().get_help_option(ctx)  # type: ignore[misc]
        return None if found is None else take_plainly(found)
