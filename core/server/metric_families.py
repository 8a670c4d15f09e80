"""Families of metrics as lines of Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..worker.totals import Histogram

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_NONE: Final[Mapping[str, str]] = {}


def text_of(families: Iterable[list[str]]) -> str:
    return "".join(f"{line}\n" for lines in families for line in lines)


def family(
    name: str, kind: str, text: str, samples: Mapping[str, float] | float, label: str = "",
    more: Mapping[str, str] = _NONE,
) -> list[str]:  # fmt: skip
    """Returns the lines of a metric. `samples`: one value, or values by the value of `label`;
    `more`: labels of all."""
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    if isinstance(samples, int | float):
        return [*head, f"{name}{labels(more)} {_number(samples)}"]
    return head + [
        f"{name}{labels({**more, label: key})} {_number(value)}" for key, value in samples.items()
    ]


def histogram_family(
    name: str, text: str, histogram: Histogram, more: Mapping[str, str] = _NONE
) -> list[str]:
    lines, n = [f"# HELP {name} {text}", f"# TYPE {name} histogram"], 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        n += count
        lines.append(f"{name}_bucket{labels({**more, 'le': str(bound)})} {n}")
    lines.append(f"{name}_sum{labels(more)} {_number(histogram.total)}")
    lines.append(f"{name}_count{labels(more)} {n}")
    return lines


def labels(values: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items())
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else f"{value:.9g}"
