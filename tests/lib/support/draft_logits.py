"""Logits of a drafter's network alone, behind rows of its target: no engine, no speculation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from nextn.core.backend.interface import Backend, State
from nextn.core.backend.step import StepPart, build_step
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import add_networks
from nextn.core.models.drafters.foreign_names import in_names_of_today
from nextn.core.models.drafters.network import BlockNetwork, BlockPlace, DraftNetwork

from .running import MAX_ROWS, PAGES, Machine, Running
from .running import load as load_model


class Pair(NamedTuple):
    """A target that has read a text but for its last token, and a network for it."""

    network: DraftNetwork
    backend: Backend
    state: State
    tokens: Sequence[int]
    features: Any  # (T - 1, taps * width): the target's, of all tokens but the last


def read_text(target: Path, draft: Path, tokens: Sequence[int], device: str = "torch") -> Pair:
    model, backend = load_model(target, device)
    with open_gguf(draft) as file:
        add_networks(model, in_names_of_today(file).file, backend)
    ((network,),) = model.drafters.values()
    running = Running(Machine(model, backend, taps=frozenset(network.taps)))
    taps = running.forward(tokens[:-1]).taps
    features = np.concatenate([taps[name] for name in network.taps], axis=1)
    return Pair(network, backend, running.machine.state, tokens, features)


def chained_logits(pair: Pair, drafted: Sequence[int]) -> Any:
    """Of a network of one token at a time: a row for each drafted token, which all are taken as
    given."""
    network, n = pair.network, len(pair.tokens)
    hidden = np.zeros((n, network.n_embd), np.float32)  # the first token has no row
    hidden[1:] = _encoded(pair)
    taps = frozenset({network.tap})
    run = pair.backend.compile(network.forward, pair.state, max_rows=MAX_ROWS, taps=taps)
    read, past, logits = list(pair.tokens), 0, []
    for token in drafted:
        output = run(build_step([StepPart(read, past, PAGES)], hidden))
        logits.append(output.logits[-1].copy())
        hidden = output.taps[network.tap][-1:].copy()
        read, past = [token], past + len(read)
    return np.stack(logits)


def _encoded(pair: Pair) -> Any:
    network, n = pair.network, len(pair.tokens) - 1
    if network.encode is None:
        return pair.features
    encode = pair.backend.compile(network.encode, pair.state, max_rows=MAX_ROWS)
    step = build_step([StepPart(pair.tokens[1:], 0, PAGES, n_out=n)], pair.features)
    return encode(step).logits


def block_logits(pair: Pair, drafted: Sequence[int]) -> tuple[Any, list[float]]:
    """Of a network of whole blocks: a row for each drafted token, corrected by the one before it,
    and how sure the network is of each, if it says so."""
    network, backend, n = pair.network, pair.backend, len(pair.tokens)
    assert isinstance(network, BlockNetwork)
    rows = np.concatenate([np.zeros_like(pair.features[:1]), pair.features])
    accepted = replace(
        build_step([StepPart(pair.tokens, 0, PAGES)], rows), out_rows=np.zeros(0, np.int32)
    )
    backend.compile(network.read, pair.state, max_rows=MAX_ROWS)(accepted)

    correction = network.correction
    taps = frozenset() if correction is None else correction.taps
    run = backend.compile(network.forward, pair.state, max_rows=MAX_ROWS, taps=taps)
    masks = [network.mask_token] * (len(drafted) + network.n_unread - 1)
    output = run(build_step([StepPart([pair.tokens[-1], *masks], n, PAGES, n_out=len(drafted))]))
    if correction is None:
        return output.logits, []
    correction.compile(backend, 1)
    chances = []
    for i, before in enumerate([pair.tokens[-1], *drafted[:-1]]):
        place = BlockPlace(i, i + network.n_unread)
        chances += correction.correct(np.array([before], np.int32), output, [place])
    return output.logits, chances
