"""A server's own counters, under llama.cpp's, vLLM's or TensorRT-LLM's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .exposition import Series, parse_exposition

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


@dataclass(frozen=True, slots=True)
class TypeCounters:
    """Of one drafter."""

    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
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

    def since(self, before: Counters) -> Counters | None:
        """What came in between; None if the server was started anew."""
        values = {name: _less(getattr(self, name), getattr(before, name)) for name in _COUNTED}
        earlier = [*before.per_place, *[0] * len(self.per_place)]
        places = tuple(n - was for n, was in zip(self.per_place, earlier, strict=False))
        types = {
            name: _type_less(of, before.by_type.get(name)) for name, of in self.by_type.items()
        }
        counts = [n for n in values.values() if n is not None]
        counts += [*places, *(n for of in types.values() for n in (of.drafted, of.accepted))]
        if min(counts, default=0) < 0 or len(before.per_place) > len(self.per_place):
            return None
        return Counters(self.prefix, per_place=places, by_type=types, busy=self.busy, **values)

    def as_json(self) -> dict[str, Any]:
        counted = {name: getattr(self, name) for name in _COUNTED}
        types = {
            name: {"drafted": of.drafted, "accepted": of.accepted}
            for name, of in self.by_type.items()
        }
        known = {name: n for name, n in counted.items() if n is not None}
        return {"names": self.prefix, **known, "per_pos": list(self.per_place), "by_type": types}


def read_counters(text: str, model: str = "") -> Counters | None:
    """None if there are none of a server that we know. `model`: of this one only, where a server
    tells them apart."""
    series = parse_exposition(text)
    prefix = next((p for p in _PREFIXES if any(s.name.startswith(p) for s in series)), None)
    if prefix is None:
        return None
    own = [s for s in series if s.name.startswith(prefix)]
    if any(s.labels.get("model_name") == model for s in own):
        own = [s for s in own if s.labels.get("model_name", model) == model]
    named = [(_plain(s.name, prefix), s) for s in own]
    values = {
        _NAMES[name]: _sum(_totals(s for other, s in named if other == name))
        for name in dict.fromkeys(name for name, _ in named)
        if name in _NAMES
    }
    return Counters(
        prefix,
        per_place=_places([s for name, s in named if name == _PER_PLACE]),
        by_type=_types([*named, *_own(series)]),
        busy=_sum(s for name, s in named if name in _BUSY),
        **values,
    )


def _own(series: Iterable[Series]) -> list[tuple[str, Series]]:
    return [(_plain(s.name, _OWN), s) for s in series if s.name.startswith(_OWN)]


def _plain(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).removesuffix("_total")


def _type_of(series: Series) -> str | None:
    return next((series.labels[name] for name in _TYPE_LABELS if name in series.labels), None)


def _totals(series: Iterable[Series]) -> list[Series]:
    """Where a family has both a total and the same by type, only the total."""
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


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None else now - (before or 0)


def _type_less(now: TypeCounters, before: TypeCounters | None) -> TypeCounters:
    was = before or TypeCounters()
    return TypeCounters(now.drafted - was.drafted, now.accepted - was.accepted)


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
