"""Merges the metrics of several replicas: every sample gets the label `replica`."""

from __future__ import annotations

from collections.abc import Mapping

from ..metrics import labels


def label_replicas(expositions: Mapping[int, str]) -> list[str]:
    """Prometheus requires `# HELP`, `# TYPE` and all samples of a metric in one group."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    name = ""
    for replica, text in expositions.items():
        for line in filter(None, text.splitlines()):
            if not line.startswith("# "):
                samples[name].append(_with_label(line, replica))
                continue
            name = line.split(" ", 3)[2]
            samples.setdefault(name, [])
            if line not in heads.setdefault(name, []):
                heads[name].append(line)
    return [line for name, head in heads.items() for line in (*head, *samples[name])]


def _with_label(sample: str, replica: int) -> str:
    label = labels({"replica": str(replica)})
    name, brace, rest = sample.partition("{")
    if brace:
        return f"{name}{label[:-1]},{rest}"
    name, _, value = sample.rpartition(" ")
    return f"{name}{label} {value}"
