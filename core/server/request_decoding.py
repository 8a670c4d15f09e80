"""Decodes the JSON object of a request to its `Body`, with an error message for each field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from .api_errors import ApiError
from .refused_fields import check_refused
from .request_bodies import Body

_SPECULATIVE: Final = "speculative"
_MAX_SHOWN: Final = 60  # characters of a wrong value
_INTEGERS: Final = 1 << 64  # JSON integers are smaller
_ERROR: Final = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\[(\d+|\.\.\.)\]|\.(\w+)")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_JSON_NAMES: Final = {
    dict: "an object", list: "a list", str: "a string", bool: "a boolean",
    int: "a number", float: "a number", type(None): "null",
}  # fmt: skip
_SIZED: Final[dict[type, Any]] = {str: inspect.StrType, list: (inspect.ListType, inspect.TupleType)}
T = TypeVar("T", bound=Body)


def decode(kind: type[T], given: dict[str, Any], size: int = 0) -> T:
    """Returns the struct. A value that does not fit raises an `ApiError` that names its field."""
    if (refused := check_refused(kind, given)) is not None:
        refuse(*refused)
    values = _normalized(given)
    try:
        body = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        _refuse_value(str(error), kind, values)
    body.__dict__.update(given=given, size=size)
    return body


def refuse(name: str, message: str) -> NoReturn:
    """Raises an error about a field. `message` continues after its name."""
    raise ApiError(400, f"{name} {message}", param=name)


def _normalized(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields with `speculative.n_max` as a member of `speculative`, as in llama.cpp."""
    values = _with_integers(given)
    prefix, inner = f"{_SPECULATIVE}.", given.get(_SPECULATIVE)
    members = {n.removeprefix(prefix): v for n, v in given.items() if n.startswith(prefix)}
    if isinstance(inner, dict) or (inner is None and members):
        members = _with_integers(members | (inner or {}))
        parts = {n: _with_integers(v) for n, v in members.items() if isinstance(v, dict)}
        values[_SPECULATIVE] = members | parts
    return values


def _with_integers(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values with whole floats as integers: JavaScript has one type of number."""
    return {
        name: int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < _INTEGERS
        else value
        for name, value in values.items()
    }


def _refuse_value(message: str, kind: type[Body], values: dict[str, Any]) -> NoReturn:
    """Raises msgspec's error in the words of JSON, with what is expected and the value."""
    match = _ERROR.fullmatch(message)
    reason, path = match.groups("") if match else (message, "")
    name, steps = path.removeprefix(".").replace("[...]", ""), _STEP.findall(path)
    if missing := _MISSING.fullmatch(reason):
        refuse(f"{name}.{missing[1]}".removeprefix("."), "is missing")
    value: Any = values
    expected = _type_info(kind)
    for index, field in steps:
        expected = _member(expected, index, field)
        if index == "...":
            refuse(name, f"must be an object whose values are {_described(expected)}")
        value = value[int(index) if index else field]
    if value is None and not name.endswith("]"):
        refuse(name, "is missing")
    if reason == "Number out of range":
        refuse(name, "is too large a number")
    if "of length" in reason:
        sized = [each for each in _choices(expected) if isinstance(each, _SIZED[type(value)])]
        refuse(name, f"must be {_described(sized[0])}, got {len(value)}")
    refuse(name, f"must be {_described(expected)}, got {_found(reason, value)}")


def _found(reason: str, value: Any) -> str:
    if value is None or "got `" not in reason:
        return _shown(value)
    return f"{_JSON_NAMES[type(value)]}: {_shown(value)}"


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "{...}" if isinstance(value, dict) else "[...]"
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


# Types as msgspec describes them


@cache  # takes milliseconds, and other requests wait
def _type_info(kind: type[Body]) -> inspect.Type:
    return inspect.type_info(kind)


def _choices(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yields the types that a value may have, without null."""
    if isinstance(kind, inspect.Metadata):
        yield from _choices(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _choices(each)
    elif not isinstance(kind, inspect.NoneType):
        yield kind


def _member(kind: inspect.Type, index: str, field: str) -> inspect.Type:
    for each in _choices(kind):
        match each:
            case inspect.StructType() if field:
                return next(found.type for found in each.fields if found.encode_name == field)
            case inspect.ListType() if index.isdigit():
                return each.item_type
            case inspect.TupleType() if index.isdigit():
                return each.item_types[int(index)]
            case inspect.DictType() if index == "...":
                return each.value_type
    return inspect.AnyType()


def _described(kind: inspect.Type) -> str:
    *others, last = dict.fromkeys(map(_described_choice, _choices(kind)))
    return f"{', '.join(others)} or {last}" if others else last


def _described_choice(kind: inspect.Type) -> str:
    match kind:
        case inspect.IntType():
            return f"a whole number{_bounds(kind.ge, kind.le, kind.gt)}"
        case inspect.FloatType():
            return f"a number{_bounds(kind.ge, kind.le, kind.gt)}"
        case inspect.StrType():
            return f"a string{_lengths(kind.min_length, kind.max_length, 'character')}"
        case inspect.ListType():
            return f"a list{_lengths(kind.min_length, kind.max_length, 'item')}"
        case inspect.TupleType():
            return f"a list of {len(kind.item_types)} items"
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
        case inspect.BoolType():
            return "true or false"
    return "an object"


def _bounds(least: float | None, most: float | None, above: float | None) -> str:
    if least is not None and most is not None:
        return f" between {least:.10g} and {most:.10g}"
    bounds = {"more than": above, "at least": least, "at most": most}
    named = [f"{word} {bound:.10g}" for word, bound in bounds.items() if bound is not None]
    return f" of {' and '.join(named)}" if named else ""


def _lengths(least: int | None, most: int | None, unit: str) -> str:
    if least and most:
        return f" of {least} to {most} {unit}s"
    number = most or least
    return f"{_bounds(least, most, None)} {unit}{'s' * (number != 1)}" if number else ""
