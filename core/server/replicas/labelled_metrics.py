"""The expositions of several replicas as one: every sample has the label `replica`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..metrics import labels


@dataclass
class MetricLines:
    """`# HELP` and `# TYPE` of one metric, and its samples."""

    head: list[str] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)


def label_replicas(expositions: Mapping[int, str]) -> list[str]:
    """Prometheus wants the samples of a metric in one group."""
    metrics: dict[str, MetricLines] = {}
    for replica, text in expositions.items():
        for name, found in _read(text).items():
            lines = metrics.setdefault(name, MetricLines(found.head))
            lines.samples += [_with_label(sample, replica) for sample in found.samples]
    return [line for found in metrics.values() for line in (*found.head, *found.samples)]


def _read(text: str) -> dict[str, MetricLines]:
    metrics: dict[str, MetricLines] = {}
    current = MetricLines()
    for line in text.splitlines():
        if line.startswith("# "):
            current = metrics.setdefault(line.split(" ", 3)[2], MetricLines())
            current.head.append(line)
        elif line:
            current.samples.append(line)
    return metrics


def _with_label(sample: str, replica: int) -> str:
    label = labels({"replica": str(replica)})
    name, brace, rest = sample.partition("{")
    if brace:
        return f"{name}{label[:-1]},{rest}"
    name, _, value = sample.rpartition(" ")
    return f"{name}{label} {value}"
