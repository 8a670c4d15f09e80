"""From the flags of servers to targets: `--url`, `--ask`, `--peer`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from ..errors import ConfigError
from ..speculation.acceptance import MATCH
from .address import ServerAddress, parse_address
from .dialects import parse_extra
from .peer import PACKAGE, Peer, PeerSettings, peer_types, peer_version
from .record import BenchReport, Sample
from .server_probe import AUTO, OURS, MeasuredServer, probe, wait_until_ready
from .server_target import ServerTarget, split_extra
from .variants import SpecVariant, parse_variant
from .wire import Timeouts, Wire

SPECULATIVE: Final = "speculative"  # the field of a request
LEARNT: Final = 1.15  # times the tokens per round of the first repetition
_NAMED: Final = re.compile(r"([^=/:\s]+)=(https?://.*)", re.IGNORECASE | re.DOTALL)
_ASK_NAMED: Final = re.compile(r"([^={}:,\s]+)=(\{.*)", re.DOTALL)


class ServerPlace(Struct, frozen=True):
    """One `--url`."""

    name: str
    address: ServerAddress
    api_key: str = ""


class RequestVariant(Struct, frozen=True):
    """Fields that are added to requests: a configuration of a server that supports them."""

    name: str
    extra: Mapping[str, Any]


class ServerRequests(Struct, frozen=True):
    """All flags of servers."""

    places: tuple[ServerPlace, ...] = ()
    variants: tuple[RequestVariant, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)  # into every request
    model: str = ""
    api: str = AUTO
    timeouts: Timeouts = field(default_factory=Timeouts)


def parse_places(urls: Sequence[str], keys: Sequence[str]) -> tuple[ServerPlace, ...]:
    """`[NAME=]URL`. A single key is for all of them; several are one for each, in order."""
    if len(keys) > 1 and len(keys) != len(urls):
        raise ConfigError(
            f"api-key: {len(keys)} keys for {len(urls)} servers; give one for all, or one for each"
        )
    places = []
    for i, text in enumerate(urls):
        named = _NAMED.fullmatch(text)
        address = parse_address(named[2] if named else text)
        key = keys[0 if len(keys) == 1 else i] if keys else ""
        places.append(
            ServerPlace(named[1] if named else address.place + address.prefix, address, key)
        )
    return tuple(places)


def parse_ask(text: str) -> RequestVariant:
    """`NAME={JSON}`, or a configuration as `--vs` has them, for the field `speculative`."""
    named = _ASK_NAMED.fullmatch(text.strip())
    if named:
        return RequestVariant(named[1], parse_extra(named[2], f"ask {named[1]}"))
    if text.lstrip().startswith("{"):
        raise ConfigError(f"ask {text[:30]!r}: give it a name, as NAME={{...}}")
    variant = parse_variant(text)
    return RequestVariant(variant.name, {SPECULATIVE: speculative_field(variant)})


def speculative_field(variant: SpecVariant) -> dict[str, Any]:
    """The field as our server reads it."""
    options = variant.options
    if variant.is_plain:
        return {"off": True}
    found: dict[str, Any] = {"types": list(options.types)}
    if options.draft_n_max is not None:
        found["n_max"] = options.draft_n_max
    if options.draft_n_min:
        found["n_min"] = options.draft_n_min
    if options.draft_p_min:
        found["p_min"] = options.draft_p_min
    if options.accept != MATCH:
        found["accept"] = options.accept
    return found


def open_servers(requests: ServerRequests) -> list[ServerTarget]:
    """Each is probed; one target for each `--ask` of each."""
    targets = []
    for place in requests.places:
        wire = Wire(place.address, place.api_key, requests.timeouts)
        service = probe(wire, model=requests.model, api=requests.api, extra=requests.extra)
        if not requests.variants:
            targets.append(ServerTarget(place.name, wire, service))
        for ask in requests.variants:
            name = ask.name if len(requests.places) == 1 else f"{place.name}/{ask.name}"
            targets.append(
                _with_warning(ServerTarget(name, wire, split_extra(service, ask.extra)), ask)
            )
    return targets


def _with_warning(target: ServerTarget, ask: RequestVariant) -> ServerTarget:
    if SPECULATIVE in ask.extra and target.service.kind != OURS:
        target.warn(
            f"{target.service.kind} may ignore what requests set for speculation; compare what was "
            "drafted"
        )
    return target


class PeerTarget(ServerTarget):
    """llama.cpp, started here, that ends with this process."""

    def __init__(self, name: str, settings: PeerSettings, timeouts: Timeouts) -> None:
        self._settings = settings
        self._peer = Peer(settings)
        try:
            wire = Wire(parse_address(self._peer.url), "", timeouts)
            wait_until_ready(wire, timeouts.silence, lambda: self._peer.is_alive)
            super().__init__(name, wire, probe(wire))
        except BaseException:
            self._peer.close()
            raise

    def describe(self) -> dict[str, Any]:
        settings = self._settings
        own = {
            "version": peer_version(),
            "model": settings.model.name,
            "spec_types": peer_types(settings.spec),
            "threads": settings.threads,
            "type_k": settings.cache_type_k,
            "type_v": settings.cache_type_v,
            "url": "http://127.0.0.1",  # its port differs each time
        }
        return super().describe() | own

    @property
    def repeats(self) -> bool:
        """N-grams of one request are drafted in the next."""
        return not any(name.startswith("ngram") for name in peer_types(self._settings.spec))

    def close(self) -> None:
        super().close()
        self._peer.close()


def parse_peer(text: str) -> SpecVariant:
    """`xllamacpp[:CONFIG]`; without one, plain decoding."""
    package, _, rest = text.strip().partition(":")
    if package != PACKAGE:
        raise ConfigError(f"peer: the only one is {PACKAGE}[:CONFIG], got {text!r}")
    variant = parse_variant(rest or "none", fixed=True)
    peer_types(variant.options)
    return replace(variant, name=f"{PACKAGE}:{rest or 'none'}")


def unique_names(targets: Iterable[Any]) -> None:
    """The second of a name is called `name#2`."""
    seen: dict[str, int] = {}
    for target in targets:
        n = seen[target.name] = seen.get(target.name, 0) + 1
        if n > 1:
            target.name = f"{target.name}#{n}"


def finish_servers(report: BenchReport, targets: Iterable[object]) -> None:
    """Add the servers' own counts and warnings to the report."""
    for target in targets:
        if not isinstance(target, ServerTarget):
            continue
        for each in report.configurations:
            if each.name == target.name:
                each.details = target.describe()
        report.warnings += [f"{target.name}: {line}" for line in target.warnings]
        report.warnings += _learning(report, target.name)
        report.warnings += [
            f"{target.name} has other counts than its streams: {line}"
            for line in target.disagreements()
        ]


def _learning(report: BenchReport, name: str) -> list[str]:
    """A server may draft from what it wrote for the same prompt before, which no use repeats."""
    mine = [s for s in report.samples if s.configuration == name and not s.error]
    last = max((s.repetition for s in mine), default=0)
    lengths = [_tokens_per_round([s for s in mine if s.repetition == n]) for n in (0, last)]
    if last < 1 or None in lengths:
        return []
    first, final = (length or 0.0 for length in lengths)
    if final < LEARNT * first:
        return []
    return [
        f"{name} made {first:.2f} tokens per round in the first repetition and {final:.2f} in the "
        "last: it drafts from its earlier answers to the same prompts, so its speed is not that "
        "of new ones; take -r 1 --no-warmup and more prompts"
    ]


def _tokens_per_round(samples: Sequence[Sample]) -> float | None:
    rounds = [sample.rounds for sample in samples]
    known = [n for n in rounds if n is not None]
    made, n_rounds = sum(sample.predicted_n - 1 for sample in samples), sum(known)
    return made / n_rounds if n_rounds and len(known) == len(rounds) else None


def provenance_of(target: ServerTarget) -> dict[str, Any]:
    """For runs without a model of our own."""
    service: MeasuredServer = target.service
    return {
        "model_name": service.model,
        "model_type": service.served.get("ftype"),
        "model_filename": service.served.get("model_path", service.model),
        "model_size": service.served.get("size"),
        "model_n_params": service.served.get("n_params"),
        "n_ctx": service.served.get("n_ctx"),
        "device": f"{service.kind} at {target.place}",
    }


def without_keys(argv: Sequence[str]) -> list[str]:
    """Reports are passed on."""
    kept, hides_next = [], False
    for word in argv:
        if hides_next:
            kept.append("***")
        else:
            kept.append("--api-key=***" if word.startswith("--api-key=") else word)
        hides_next = word == "--api-key" and not hides_next
    return kept
