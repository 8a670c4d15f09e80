"""Dataclasses to JSON and back, checked by their annotations.

Files of results come from other machines and other versions: what is wrong in one is said with
its place, `samples[3].prompt_n must be a whole number, got "x"`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ..errors import ConfigError

T = TypeVar("T")
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def encode(value: Any) -> Any:
    """Plain lists, dicts, numbers, text. Fields that hold their default are kept, too."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: Any, place: str = "") -> T:
    """A ConfigError says which part of `value` is not what `kind` declares.

    Unknown keys are passed over: a newer version may have written them.
    """
    return cast(T, _decode(kind, value, place))


def _decode(kind: Any, value: Any, place: str) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        options = get_args(kind)
        if value is None and type(None) in options:
            return None
        (only,) = (option for option in options if option is not type(None))
        return _decode(only, value, place)
    if is_dataclass(kind):
        return _decode_object(kind, value, place)
    if _is_record(kind):
        return _decode_record(kind, value, place)
    if origin in (list, tuple):
        _must(isinstance(value, list), place, "a list", value)
        item = get_args(kind)[0]
        found = [_decode(item, each, f"{place}[{i}]") for i, each in enumerate(value)]
        return found if origin is list else tuple(found)
    if origin is dict:
        _must(isinstance(value, dict), place, "an object", value)
        item = get_args(kind)[1]
        return {key: _decode(item, each, _join(place, key)) for key, each in value.items()}
    return _decode_plain(kind, value, place)


def _decode_plain(kind: Any, value: Any, place: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    is_right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    _must(is_right, place, _NAMES.get(kind, str(kind)), value)
    return value


def _decode_object(kind: Any, value: Any, place: str) -> Any:
    _must(isinstance(value, dict), place, "an object", value)
    given = {}
    for name, hint, is_required in _shape(kind):
        if name in value:
            given[name] = _decode(hint, value[name], _join(place, name))
        elif is_required:
            raise ConfigError(f"{_join(place, name)} is missing")
    return kind(**given)


def _decode_record(kind: Any, value: Any, place: str) -> Any:
    """A named tuple: a list of exactly its fields."""
    hints = list(get_type_hints(kind).values())
    is_right = isinstance(value, list) and len(value) == len(hints)
    _must(is_right, place, f"a list of {len(hints)}", value)
    pairs = enumerate(zip(hints, value, strict=True))
    return kind(*(_decode(hint, each, f"{place}[{i}]") for i, (hint, each) in pairs))


@cache
def _shape(kind: Any) -> list[tuple[str, Any, bool]]:
    hints = get_type_hints(kind)
    return [
        (f.name, hints[f.name], f.default is MISSING and f.default_factory is MISSING)
        for f in fields(kind)
        if f.init
    ]


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _must(is_right: bool, place: str, what: str, value: Any) -> None:
    if not is_right:
        shown = repr(value)
        shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
        raise ConfigError(f"{place or 'the whole'} must be {what}, got {shown}")
