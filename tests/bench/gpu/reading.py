"""Prompts, and the memory that drafts take."""

from __future__ import annotations

import statistics
from functools import partial

from nextn.core.backend.interface import StateRoom
from nextn.core.engine.engine import Engine
from nextn.core.generation import ERROR, GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.state.sizes import PAGE_LEN

from ..figures import Figure, spread
from ..spec_runs import PLAIN, new_engine
from .loaded import Loaded

ASKED = {("27B", 8192): 9000.0}
DRAFTED = 16


def prompts(loaded: Loaded, seconds: float) -> list[Figure]:
    """From the request to the first token, nothing of it known before."""
    figures, lengths = [], loaded.scale.prompts
    for n in lengths:
        engine = new_engine(loaded.with_context(n + 8), PLAIN)
        share = seconds / len(lengths)
        found = loaded.place.interleaved({"s": partial(_seconds, loaded, engine, n)}, share)["s"]
        rate = n / statistics.median(found)
        asked = ASKED.get((loaded.plan.name, n))
        detail = {"seconds": spread(found)}
        figures.append(Figure(f"prompt of {n}", rate, "tokens/s", at_least=asked, detail=detail))
        engine.close()
        del engine
        loaded.place.tidy()
    return figures


def _seconds(loaded: Loaded, engine: Engine, n: int, i: int) -> float:
    params = GenerateParams(SamplingParams(temperature=0.0), max_tokens=1, ignore_eos=True)
    text = engine.add(loaded.tokens(n, 1000 + i), params)

    def work() -> None:
        while engine.has_work:
            engine.step()

    took = loaded.place.seconds(work)
    if text.stop_reason == ERROR:
        raise AssertionError("the prompt ended with an error: nothing was measured")
    engine.forget()
    return took


def rollback(loaded: Loaded, seconds: float) -> list[Figure]:
    """Counted from the arrays that are there."""
    backend, shape = loaded.backend, loaded.runtime.model.state_shape
    state = backend.new_state(
        shape, StateRoom(n_pages=1, page_len=PAGE_LEN, n_slots=1, window=DRAFTED + 1)
    )
    delta = state._delta
    assert delta is not None
    factors = sum(_bytes(array) for array in (delta.keys, delta.updates, delta.decays))
    own, ring = _bytes(delta.state), _bytes(delta.ring)
    counted = backend.state_bytes(shape, page_len=PAGE_LEN, window=DRAFTED + 1)[1]
    asked = 60.0 if loaded.plan.name == "27B" else None
    name = f"factors for {DRAFTED} draft tokens"
    figures = [
        Figure(name, factors / 1e6, "MB", at_most=asked),
        Figure("a state", own / 1e6, "MB"),
        Figure("rows of convolutions", ring / 1e6, "MB"),
        Figure(f"snapshots for {DRAFTED} draft tokens", DRAFTED * own / 1e6, "MB"),
    ]
    held = own + ring + factors + _bytes(delta.header)
    figures.append(Figure("allocated / counted", held / counted, "x", at_most=1.0))
    return figures


def _bytes(array: object) -> int:
    return int(array.nbytes)  # type: ignore[attr-defined]
