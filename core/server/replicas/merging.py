"""The expositions of several replicas as one, for /metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..metrics import labels

# Counters that are no sums, and what a replica says of an average text or step.
_LARGEST: Final = ("llamacpp:n_tokens_max",)
_MEANS: Final = (
    "llamacpp:prompt_tokens_seconds",
    "llamacpp:predicted_tokens_seconds",
    "llamacpp:n_busy_slots_per_decode",
)


@dataclass
class Family:
    """The lines of one metric: `# HELP` and `# TYPE`, then values by `name{labels}`."""

    name: str
    head: list[str] = field(default_factory=list)
    kind: str = ""
    samples: dict[str, float] = field(default_factory=dict)


def read_exposition(text: str) -> dict[str, Family]:
    families: dict[str, Family] = {}
    current = Family("")
    for line in text.splitlines():
        if line.startswith("# "):
            _, keyword, name, rest = (*line.split(" ", 3), "")[:4]
            current = families.setdefault(name, Family(name))
            current.head.append(line)
            if keyword == "TYPE":
                current.kind = rest
        elif line:
            sample, _, value = line.rpartition(" ")
            current.samples[sample] = float(value)
    return families


class Ledger:
    """Counters never go down, although a replica that starts again counts from 0: what one that
    is lost had counted, as far as it was known, stays in the sum."""

    def __init__(self) -> None:
        self._past: dict[str, float] = {}
        self._last: dict[int, dict[str, Family]] = {}
        self._lives: dict[int, int] = {}

    def note(self, replica: int, life: int, told: dict[str, Family]) -> None:
        """`life`: which one it is, of a replica that was started several times."""
        if self._lives.get(replica, life) != life:
            for family in self._last.pop(replica, {}).values():
                if family.kind != "gauge" and family.name not in _LARGEST:
                    for sample, value in family.samples.items():
                        self._past[sample] = self._past.get(sample, 0) + value
        self._lives[replica], self._last[replica] = life, told

    def total(self, present: Iterable[int]) -> list[str]:
        """One exposition of all; gauges are of those who are present."""
        present, lines = set(present), list[str]()
        for family in self._families():
            parts = [
                told[family.name].samples
                for replica, told in self._last.items()
                if family.name in told and (replica in present or family.kind != "gauge")
            ]
            lines += family.head
            names = dict.fromkeys(sample for part in parts for sample in part)
            for sample in names:
                values = [part[sample] for part in parts if sample in part]
                lines.append(f"{sample} {number(self._joined(family.name, sample, values))}")
        return lines

    def each(self, present: Iterable[int]) -> list[str]:
        """The same by replica."""
        present, lines = sorted(present), list[str]()
        for family in self._families():
            lines += family.head
            for replica in present:
                told = self._last.get(replica, {}).get(family.name, family)
                for sample, value in told.samples.items() if told is not family else ():
                    lines.append(f"{_with_label(sample, replica)} {number(value)}")
        return lines

    def _families(self) -> list[Family]:
        found: dict[str, Family] = {}
        for told in self._last.values():
            for name, family in told.items():
                found.setdefault(name, Family(name, family.head, family.kind))
        return list(found.values())

    def _joined(self, name: str, sample: str, values: list[float]) -> float:
        if name in _LARGEST:
            return max(values)
        if name in _MEANS:
            told = [value for value in values if value]
            return sum(told) / len(told) if told else 0.0
        return sum(values) + self._past.get(sample, 0)


def _with_label(sample: str, replica: int) -> str:
    name, brace, rest = sample.partition("{")
    own = labels({"replica": str(replica)})
    return f"{name}{own[:-1]},{rest}" if brace else f"{name}{own}"


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.9g}"


def family_lines(name: str, kind: str, text: str, values: Mapping[int, float]) -> list[str]:
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    return head + [
        f"{name}{labels({'replica': str(replica)})} {number(value)}"
        for replica, value in values.items()
    ]
