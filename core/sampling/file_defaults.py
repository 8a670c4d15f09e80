"""Sampling parameters that a GGUF file recommends: llama.cpp's keys `general.sampling.*`."""

from __future__ import annotations

import logging
from typing import Any, Final

from ..errors import NextnError
from ..gguf.metadata import Metadata
from ..gguf.printable import printable
from .order import parse_samplers
from .params import SamplingParams

logger = logging.getLogger(__name__)

_PREFIX: Final = "general.sampling."
_NAMES: Final = {
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "temp": "temperature",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}


def file_defaults(metadata: Metadata) -> dict[str, Any]:
    """The recommended values by the names of `SamplingParams`. A wrong one is ignored, with a
    warning: it must not keep a model from running."""
    found: dict[str, Any] = {}
    for key, name in (*_NAMES.items(), ("sequence", "samplers")):
        if _PREFIX + key not in metadata:
            continue
        value: Any = metadata[_PREFIX + key]
        try:
            if name == "samplers":
                value = parse_samplers(metadata.str(_PREFIX + key))
            SamplingParams(**{name: value})
        except (NextnError, TypeError, ValueError) as error:
            logger.warning("%s%s is ignored: %s", _PREFIX, key, printable(str(error)))
            continue
        found[name] = value
    return found
