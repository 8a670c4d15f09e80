"""A server's own counters, under llama.cpp's, vLLM's or TensorRT-LLM's names, and the same counts
of the streams here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from .record import Sample

# A server that has both prefixes counts the same things twice; the first is read.
_PREFIXES: Final = ("llamacpp:", "vllm:", "trtllm_")
_NAMES: Final = {
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted",
    "tokens_predicted": "predicted",
    "generation_tokens": "predicted",
    "prompt_tokens": "prompt",
    "prompt_tokens_cached": "cached",
    "prefix_cache_hits": "cached",
    "n_decode": "steps",
}
_OWN: Final = "nextn:"  # beside llama.cpp's, what only our server counts
_OWN_NAMES: Final = {"draft_tokens": "drafted", "accepted_tokens": "accepted"}
_PER_PLACE: Final = "spec_decode_num_accepted_tokens_per_pos"
_BUSY: Final = ("requests_processing", "requests_deferred", "num_requests_running",
                "num_requests_waiting")  # fmt: skip
_TYPE_LABELS: Final = ("type", "source", "spec_type")
_COUNTED: Final = ("drafts", "drafted", "accepted", "predicted", "prompt", "cached", "steps")


_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{(.*)\})?\s*(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPES: Final = {"n": "\n", '"': '"', "\\": "\\"}


class TypeCounters(NamedTuple):
    """Tokens of one drafter."""

    drafted: int = 0
    accepted: int = 0


class Counters(Struct, frozen=True):
    """Since the server started, or between two moments. None: it does not count that."""

    prefix: str
    drafts: int | None = None  # passes that had a draft to verify
    drafted: int | None = None
    accepted: int | None = None
    predicted: int | None = None
    prompt: int | None = None
    cached: int | None = None
    steps: int | None = None  # passes, those of prompts included
    per_place: tuple[int, ...] = ()  # accepted, by place in the draft
    by_type: dict[str, TypeCounters] = field(default_factory=dict)
    busy: int = 0  # requests that run or wait

    @property
    def counts_cached(self) -> bool:
        """Are prompt tokens that came from a cache among those of prompts? llama.cpp's are not."""
        return self.prefix != _PREFIXES[0]

    def plus(self, other: Counters, sign: int = 1) -> Counters:
        """Each count with `sign` times that of `other`, which is 0 where it is unknown."""
        values = {
            name: None if n is None else n + sign * (getattr(other, name) or 0)
            for name in _COUNTED
            for n in [getattr(self, name)]
        }
        types = {}
        for name in {**other.by_type, **self.by_type}:
            one, another = (of.by_type.get(name, TypeCounters()) for of in (self, other))
            types[name] = TypeCounters(*(n + sign * m for n, m in zip(one, another, strict=True)))
        places = _sums([self.per_place, [sign * n for n in other.per_place]])
        return Counters(self.prefix, per_place=places, by_type=types, busy=self.busy, **values)

    def since(self, before: Counters) -> Counters | None:
        """The counts in between; None if the server was started anew."""
        found = self.plus(before, -1)
        counts = [n for name in _COUNTED if (n := getattr(found, name)) is not None]
        counts += [*found.per_place, *(n for of in found.by_type.values() for n in of)]
        was_longer = len(before.per_place) > len(self.per_place)
        return None if was_longer or min(counts, default=0) < 0 else found

    def as_json(self) -> dict[str, Any]:
        known = {name: n for name in _COUNTED if (n := getattr(self, name)) is not None}
        types = {name: of._asdict() for name, of in self.by_type.items()}
        return {"names": self.prefix, **known, "per_pos": list(self.per_place), "by_type": types}


def read_counters(text: str, model: str = "") -> Counters | None:
    """None if there are none of a server that we know. `model`: of this one only, where a server
    counts them apart."""
    series = parse_exposition(text)
    prefix = next((p for p in _PREFIXES if any(s.name.startswith(p) for s in series)), None)
    if prefix is None:
        return None
    read = [s for s in series if s.name.startswith(prefix)]
    if any(s.labels.get("model_name") == model for s in read):
        read = [s for s in read if s.labels.get("model_name", model) == model]
    named = [(_plain(s.name, prefix), s) for s in read]
    own_types = [(_plain(s.name, _OWN), s) for s in series if s.name.startswith(_OWN)]
    values = {
        _NAMES[name]: _sum(_totals(s for other, s in named if other == name))
        for name in dict.fromkeys(name for name, _ in named)
        if name in _NAMES
    }
    return Counters(
        prefix,
        per_place=_places([s for name, s in named if name == _PER_PLACE]),
        by_type=_types([*named, *own_types]),
        busy=_sum(s for name, s in named if name in _BUSY),
        **values,
    )


def _plain(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).removesuffix("_total")


def _type_of(series: Series) -> str | None:
    return next((series.labels[name] for name in _TYPE_LABELS if name in series.labels), None)


def _totals(series: Iterable[Series]) -> list[Series]:
    """The series without those by type, where there is a total as well."""
    every = list(series)
    return [s for s in every if _type_of(s) is None] or every


def _places(series: Sequence[Series]) -> tuple[int, ...]:
    places: dict[int, int] = {}
    for each in _totals(series):
        place = each.labels.get("position", "")
        if place.isascii() and place.isdigit() and int(place) < 1024:
            places[int(place)] = places.get(int(place), 0) + round(each.value)
    return tuple(places.get(place, 0) for place in range(max(places, default=-1) + 1))


def _types(named: Sequence[tuple[str, Series]]) -> dict[str, TypeCounters]:
    counts: dict[str, dict[str, int]] = {}
    for name, series in named:
        kind, what = _type_of(series), (_NAMES | _OWN_NAMES).get(name)
        if kind is not None and what in ("drafted", "accepted"):
            of = counts.setdefault(kind, {"drafted": 0, "accepted": 0})
            of[what] += round(series.value)
    return {kind: TypeCounters(**of) for kind, of in counts.items()}


def _sum(series: Iterable[Series]) -> int:
    return round(sum(s.value for s in series))


# The streams here ---------------------------------------------------------------------------------


def counted(
    samples: Sequence[Sample], with_cached: bool, *, with_drafts: bool = True
) -> dict[str, Any]:
    """Counts of the streams, as the server counts; None where one is unknown of a sample."""
    values: dict[str, Any] = {
        "predicted": sum(s.predicted_n for s in samples),
        "prompt": sum(s.prompt_n - (0 if with_cached else s.cached_n) for s in samples),
    }
    if not with_drafts:
        return values
    for name, attribute in (("drafts", "drafts"), ("drafted", "draft_n"),
                            ("accepted", "draft_n_accepted")):  # fmt: skip
        known = [getattr(s, attribute) for s in samples]
        values[name] = None if None in known else sum(known)
    places = [s.accepted_per_pos for s in samples]
    values["per_pos"] = (
        None if None in places else list(_sums([p for p in places if p is not None]))
    )
    return values


def fill_from_counters(sample: Sample, found: Counters | None) -> None:
    """For a server that counts drafts in its counters and not in its answers."""
    if found is None or found.drafted is None or found.accepted is None:
        return
    if (found.predicted or 0) != sample.predicted_n:
        return  # it also served other clients
    sample.draft_n, sample.draft_n_accepted = found.drafted, found.accepted
    sample.drafts = found.drafts
    sample.accepted_per_pos = list(found.per_place)
    sample.rounds = max(0, sample.predicted_n - 1 - found.accepted)


def added(counts: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of two results of `counted`; None where either is."""
    return {name: _added(counts[name], n) if name in counts else n for name, n in more.items()}


def _added(some: Any, others: Any) -> Any:
    if some is None or others is None:
        return None
    return list(_sums([some, others])) if isinstance(some, list) else some + others


def _sums(lists: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Sums by place, as far as the longest list goes."""
    return tuple(map(sum, zip_longest(*lists, fillvalue=0)))


def differences(ours: Mapping[str, Any], counters: Counters) -> list[tuple[str, Any, Any]]:
    """(what, as we counted, as the server counted), of everything that both know."""
    theirs = {name: getattr(counters, name) for name in _COUNTED}
    theirs["per_pos"] = list(counters.per_place)
    pairs = [(name, ours[name], theirs.get(name)) for name in ours]
    return [
        (name, _cut(our), _cut(their)) for name, our, their in pairs if None not in (our, their)
    ]


def _cut(value: Any) -> Any:
    """Places at which nothing was accepted are listed by some and not by others."""
    if not isinstance(value, list):
        return value
    last = max((i for i, n in enumerate(value) if n), default=-1)
    return value[: last + 1]


# Prometheus text ---------------------------------------------------------------------------------


class Series(Struct, frozen=True):
    name: str
    labels: dict[str, str]
    value: float


def parse_exposition(text: str) -> list[Series]:
    """Lines of another form are left out: a proxy's error page has no counters."""
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
