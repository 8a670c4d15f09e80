"""Prometheus text: what `/metrics` of a server says, line by line."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{(.*)\})?\s*(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES: Final = {"n": "\n", '"': '"', "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    labels: dict[str, str]
    value: float


def parse_exposition(text: str) -> list[Series]:
    """Lines that are none of it are left out: a proxy's error page has no counters."""
    found = (_series(line) for line in text.splitlines() if not line.lstrip().startswith("#"))
    return [series for series in found if series is not None]


def _series(line: str) -> Series | None:
    match = _SAMPLE.fullmatch(line.strip())
    if match is None:
        return None
    try:
        value = float(match[3])
    except ValueError:
        return None
    labels = _labels(match[2] or "")
    return None if labels is None or math.isnan(value) else Series(match[1], labels, value)


def _labels(text: str) -> dict[str, str] | None:
    labels, at = {}, 0
    while at < len(text.rstrip()):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        labels[match[1]] = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), match[2])
        at = match.end()
    return labels
