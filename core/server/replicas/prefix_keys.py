"""`RoutingHint`: how a request begins, read from its body without a tokenizer.

Two requests that begin alike have the first of their keys in common. A message ends a piece, so
that a chat whose history grows shares all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Struct

from ..response_store import replica_of

PIECE_BYTES: Final = 256
MAX_KEYS: Final = 4096  # of a request
ANY_SLOT: Final = -1
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class RoutingHint(Struct, frozen=True):
    keys: tuple[int, ...] = ()
    n_sequences: int = 1
    slot: int = ANY_SLOT
    replica: int | None = None  # that keeps the response which this one goes on from


NO_HINT: Final = RoutingHint()


def read_hint(body: bytes) -> RoutingHint:
    """Returns the hint of a request; an empty one if the body is malformed, which the replica
    refuses."""
    try:
        value = _decode(body)
        if not isinstance(value, dict):
            return NO_HINT
        prompts = _prompts(value.get("prompt"))
        keys = () if value.get("cache_prompt") is False else keys_of(_parts(value, prompts))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return NO_HINT
    n, slot = _count(value.get("n")), value.get("id_slot")
    return RoutingHint(
        keys,
        n_sequences=n * max(len(prompts), 1),
        slot=slot if isinstance(slot, int) and slot >= 0 else ANY_SLOT,
        replica=replica_of(value.get("previous_response_id")),
    )


def keys_of(parts: Iterator[bytes]) -> tuple[int, ...]:
    """Returns chained hashes: each key depends on all bytes before it."""
    keys: list[int] = []
    digest = b""
    for part in parts:
        for start in range(0, len(part), PIECE_BYTES):
            if len(keys) == MAX_KEYS:
                return tuple(keys)
            piece = part[start : start + PIECE_BYTES]
            digest = blake2b(digest + piece, digest_size=8).digest()
            keys.append(int.from_bytes(digest, "little"))
    return tuple(keys)


def _parts(value: dict[str, Any], prompts: list[Any]) -> Iterator[bytes]:
    """Yields the parts of a request, about in the order in which they stand in the prompt."""
    for name in ("tools", "system", "instructions", "input_extra"):
        if value.get(name):
            yield _encode(value[name])
    for name in ("messages", "input"):
        given = value.get(name)
        if isinstance(given, list):
            yield from (_encode(each) for each in given)
        elif isinstance(given, str):
            yield given.encode()
    if isinstance(value.get("input_prefix"), str):
        yield value["input_prefix"].encode()
    if prompts:
        first = prompts[0]
        yield first.encode() if isinstance(first, str) else _encode(first)


def _prompts(value: Any) -> list[Any]:
    """Returns one prompt or several, by the rule of `prompts.read_prompts`."""
    if value is None:
        return []
    if isinstance(value, list) and (
        any(isinstance(each, list | dict) for each in value)
        or (value and all(isinstance(each, str) for each in value))
    ):
        return value
    return [value]


def _count(value: Any) -> int:
    return min(max(value, 1), 128) if isinstance(value, int) else 1
