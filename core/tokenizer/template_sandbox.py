"""The Jinja environment of chat templates: what transformers offers them, minus what hurts.

Imported by the worker process only. A template comes out of a file from anywhere: the sandbox
keeps it from Python's internals, the checks here from the operators that Jinja would compute
while compiling, and the worker's limits from everything that no hook sees.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MAX_ITEMS = 1_000_000  # characters or list elements that `*` may make
_MAX_BITS = 128  # of a whole number that `*` or `**` may make: counts and sizes fit
_LONG_FIELD = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)")


class Sandbox(ImmutableSandboxedEnvironment):
    # Intercepted operators are also left alone by the optimiser, which would compute
    # `9**9**8` before any limit of rendering could apply.
    intercepted_binops = frozenset(("**", "*", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.globals = {
            "range": self.globals["range"],  # the sandbox's own, with a limit
            "dict": dict,
            "namespace": _Namespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.filters["tojson"] = _to_json
        self.filters["format"] = _format

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        _CHECKS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: object, attribute: str) -> NoReturn:
        """Jinja's own answer prints as nothing unless it is used further."""
        raise SecurityError(f"{attribute!r} of {type(obj).__name__!r} is out of reach")


class _Namespace(Namespace):
    """One that cannot pass for something else by means of `__class__` and its like."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text, for training; here it renders its content."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's way of declaring it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)  # what is set inside stays inside


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    if len(layout) > 100 or _LONG_FIELD.search(layout):
        raise SecurityError("strftime_now: the format is too long")
    return datetime.now().strftime(layout)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own escapes <, >, & and ' for HTML; the models were trained without that.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _format(layout: object, *args: Any, **kwargs: Any) -> str:
    text = str(layout)
    values = kwargs or args
    _check_remainder(text, values)
    return text % values


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int):
        if base.bit_length() * max(exponent, 0) > _MAX_BITS:
            raise SecurityError("** makes too large a number")
    elif not isinstance(base, int | float) or not isinstance(exponent, int | float):
        raise SecurityError("** takes numbers")


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | bytes | list | tuple) and isinstance(times, int):
            if len(value) * times > _MAX_ITEMS:
                raise SecurityError("* makes too long a text or list")
            return
    whole = isinstance(left, int) and isinstance(right, int)
    if whole and left.bit_length() + right.bit_length() > _MAX_BITS:
        raise SecurityError("* makes too large a number")


def _check_remainder(left: Any, right: Any) -> None:
    if isinstance(left, str | bytes):
        layout = left if isinstance(left, str) else left.decode("latin-1")
        if _LONG_FIELD.search(layout):
            raise SecurityError("% makes too long a text")


_CHECKS: dict[str, Callable[[Any, Any], None]] = {
    "**": _check_power,
    "*": _check_product,
    "%": _check_remainder,
}
