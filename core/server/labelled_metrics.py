"""Merges the metrics of several replicas or models: every sample gets a label that says whose."""

from __future__ import annotations

from collections.abc import Mapping

from .metric_families import labels


def with_label(label: str, expositions: Mapping[str, str]) -> list[str]:
    """Returns lines; `expositions` are by the value of the label. Prometheus requires `# HELP`,
    `# TYPE` and all samples of a metric in one group."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    name = ""
    for value, text in expositions.items():
        pair = labels({label: value})
        for line in filter(None, text.splitlines()):
            if not line.startswith("# "):
                samples[name].append(_labelled(line, pair))
                continue
            name = line.split(" ", 3)[2]
            samples.setdefault(name, [])
            if line not in heads.setdefault(name, []):
                heads[name].append(line)
    return [line for name, head in heads.items() for line in (*head, *samples[name])]


def _labelled(sample: str, label: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f"{name}{label[:-1]},{rest}"
    name, _, value = sample.rpartition(" ")
    return f"{name}{label} {value}"
