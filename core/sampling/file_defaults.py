"""Sampling parameters that a GGUF file recommends: llama.cpp's keys `general.sampling.*`."""

from __future__ import annotations

import logging
from typing import Any, Final, cast

import numpy as np

from ..errors import ConfigError
from ..gguf.metadata import Metadata
from ..gguf.printable import printable
from ..gguf.types import FLOATS, INTEGERS, Value, ValueType
from .order import parse_samplers
from .params import SamplingParams

logger = logging.getLogger(__name__)

_PREFIX: Final = "general.sampling."
_INTEGERS: Final = {"top_k": "top_k", "penalty_last_n": "repeat_last_n", "mirostat": "mirostat"}
_NUMBERS: Final = {
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "temp": "temperature",
    "penalty_repeat": "repeat_penalty",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
_ORDER: Final = {"sequence": "samplers"}
NAMES: Final = _INTEGERS | _NUMBERS | _ORDER
_ALL_TOKENS: Final = 0  # of top_k, for which llama.cpp also takes negative numbers
_INT32: Final = 1 << 31


def file_defaults(metadata: Metadata) -> dict[str, Any]:
    """The recommended values by the names of `SamplingParams`. A wrong one is ignored, with a
    warning: it must not keep a model from running."""
    found: dict[str, Any] = {}
    for key, name in NAMES.items():
        path = _PREFIX + key
        given = metadata.get(path)
        if given is None or (isinstance(given, str) and not given):
            continue
        try:
            value = _read(key, given, metadata.entry(path).type)
            SamplingParams(**{name: value})
        except ConfigError as error:
            logger.warning("%s is ignored: %s", path, error)
            continue
        found[name] = value
    return found


def _read(key: str, value: Value, kind: ValueType) -> Any:
    if key in _ORDER:
        if isinstance(value, str):
            return parse_samplers(value)
        raise _wrong("a text of sampler names", value)
    if kind not in INTEGERS | FLOATS:
        raise _wrong("a number", value)
    number = cast("int | float", value)
    if key in _NUMBERS:
        # 0.95 and not 0.949999988: the number that was meant, as a flag gives it.
        return float(str(np.float32(number))) if kind is ValueType.F32 else float(number)
    if not -_INT32 <= number < _INT32 or number != int(number):
        raise _wrong("a whole number of 32 bits", value)
    return max(int(number), _ALL_TOKENS) if key == "top_k" else int(number)


def _wrong(expected: str, value: object) -> ConfigError:
    return ConfigError(f"it must be {expected}, got {printable(value)}")
