"""Values of metadata in place of a file's own: `--override-kv`, and the flags of rope."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from ..errors import ConfigError
from .metadata import Metadata
from .printable import printable
from .reader import GgufFile
from .types import FLOATS, INTEGERS, Typed, ValueType

_ROPE: Final = "rope."
Scalar = bool | int | float | str
_log: Final = logging.getLogger(__name__)
_NEXT: Final = re.compile(r",(?=[\w.]+=(?:int|float|bool|str):)")
_ONE: Final = re.compile(r"([\w.]+)=(int|float|bool|str):(.*)", re.DOTALL)
_KINDS: Final = {
    **dict.fromkeys(INTEGERS, "int"), **dict.fromkeys(FLOATS, "float"),
    ValueType.BOOL: "bool", ValueType.STRING: "str",
}  # fmt: skip
_TYPES: Final = {
    bool: ValueType.BOOL, int: ValueType.I64, float: ValueType.F64, str: ValueType.STRING,
}  # fmt: skip


def parse_overrides(text: str) -> dict[str, Scalar]:
    """`KEY=TYPE:VALUE`, or several with commas between them, as llama.cpp has them."""
    found: dict[str, Scalar] = {}
    for each in _NEXT.split(text):
        match = _ONE.fullmatch(each)
        if match is None:
            raise ConfigError(
                f"--override-kv is like llama.context_length=int:4096, with int, float, bool or "
                f"str, got {each!r:.80}"
            )
        found[match[1]] = _value(match[1], match[2], match[3])
    return found


def _value(key: str, kind: str, text: str) -> Scalar:
    try:
        if kind == "int" and abs(number := int(text)) < 1 << 63:
            return number
        if kind == "float":
            return float(text)
    except ValueError:
        pass
    if kind == "bool" and text in ("true", "false"):
        return text == "true"
    if kind == "str":
        return text
    raise ConfigError(f"--override-kv {key}: {text!r:.60} is no {kind}")


def with_overrides(file: GgufFile, values: Mapping[str, Scalar]) -> GgufFile:
    """Keys as in the file, or without the architecture in front."""
    if not values:
        return file
    meta = file.metadata
    entries = {key: meta.entry(key) for key in meta}
    for given, value in values.items():
        is_whole = given in meta or given.startswith(f"{meta.architecture}.")
        key = given if is_whole else meta.full_key(given)
        if type(value) not in _TYPES:
            raise ConfigError(f"the value of {printable(key)} must be a bool, int, float or str")
        if key in entries:
            _check(key, entries[key], value)
        elif not given.startswith(_ROPE):  # these are seldom in files
            _log.warning("%s has no key %s to override", file.label, printable(key))
        entries[key] = Typed(_TYPES[type(value)], value)
    return replace(file, metadata=Metadata(entries, file.label))


def _check(key: str, own: Typed, value: Scalar) -> None:
    kind, wanted = _KINDS.get(own.type, "list"), type(value).__name__
    if kind != wanted and (kind, wanted) != ("float", "int"):
        raise ConfigError(
            f"{printable(key)} is of type {kind} in the file, and cannot become one of {wanted}"
        )
