"""Random blocks of rows, from which drafts are picked at once, and what each row means alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from nextn.core.backend.interface import DraftLoopPlan, Drafts, DraftSettings, HostOutput
from nextn.core.backend.layers import Floats
from nextn.core.backend.step import Step, StepPart, build_step

from .draft_loops import (
    MAX_DRAFT,
    MAX_ROWS,
    MAX_TEXTS,
    PAGES_PER_TEXT,
    Drafter,
    assert_alike,
    random_sampler,
)
from .running import load
from .tiny_models import TinyModel

Tiny = Callable[..., TinyModel]

SUBSET = np.arange(3, 303, 3, dtype=np.int32)
STOPS = (4, 17, 120)
AHEAD = -1  # tokens are those at the place before a row's


def plan_of(made: Drafter, stops: Sequence[int]) -> DraftLoopPlan:
    plan = made.plan(stops)
    return replace(plan, max_rows=MAX_ROWS, tap=None, ahead=AHEAD)


def random_block(
    made: Drafter, rng: np.random.Generator, n: int, *, sharp: bool = True
) -> tuple[Step, list[DraftSettings]]:
    """Rows of some sequences: the first has no logits, the others are a draft's. `sharp`: some with
    chances at another temperature than 1."""
    parts, asks = [], []
    pages = rng.permutation(MAX_TEXTS * PAGES_PER_TEXT).reshape(MAX_TEXTS, -1).tolist()
    for b in range(n):
        length = int(rng.integers(1, MAX_DRAFT + 1))
        tokens = rng.integers(0, made.n_vocab, length + 1).tolist()
        first = int(rng.integers(1, 40))
        parts.append(StepPart(tokens, 0, pages[b], b, 0, first, n_out=length))
        sampler = random_sampler(rng, made.n_vocab, b)
        p_min = float(rng.choice([0.0, 0.0, 0.003, 0.2]))
        sharpness = float(rng.choice([1.0, 1.0, 0.4, 2.5])) if sharp else 1.0
        asks.append(DraftSettings(sampler, length, p_min, sharpness))
    step = build_step(parts)
    if made.is_head:
        shape = step.n_rows, made.model.hparams.n_embd
        step = replace(step, hidden=rng.normal(0, 1, shape).astype(np.float32))
    return step, asks


def drafts_by_row(
    made: Drafter, step: Step, asks: Sequence[DraftSettings], stops: Sequence[int]
) -> Drafts:
    """Every sequence by itself, chances in float64."""
    drafts = Drafts([], [])
    run = made.backend.compile(made.forward, made.new_state(), max_rows=MAX_ROWS)
    for b, ask in enumerate(asks):
        rows = step.rows(b)
        tokens, first = step.tokens[rows].tolist(), int(step.positions[rows][0])
        pages, slot = step.pages[b].tolist(), int(step.slots[b])
        part = StepPart(tokens, 0, pages, slot, 0, first, n_out=ask.length)
        hidden = None if step.hidden is None else step.hidden[rows]
        drafts.tokens.append([])
        drafts.chances.append([])
        for i, found in enumerate(run(build_step([part], hidden)).logits.copy()):
            logits = _of_all_tokens(made, found)
            token = ask.picker.pick(HostOutput(logits[None], {}), 0, first + 1 + i + AHEAD)
            weights = np.exp((logits.astype(np.float64) - logits.max()) * ask.inverse_temperature)
            chance = float(weights[token] / weights.sum())
            if token in stops or chance < ask.p_min:
                break
            drafts.tokens[-1].append(token)
            drafts.chances[-1].append(chance)
    return drafts


def _of_all_tokens(made: Drafter, logits: Floats) -> Floats:
    if made.vocab_subset is None:
        return logits
    wide = np.full(made.n_vocab, -np.inf, np.float32)
    wide[made.vocab_subset] = logits
    return wide


def drafter_of_blocks(
    tiny: Tiny, device: str, *, short: bool, quantise: str | None = None
) -> Drafter:
    """A model of its own, or a head over part of the vocabulary."""
    options = {} if quantise is None else {"quantise": quantise}
    model, backend = load(tiny("qwen35" if short else "qwen3", mtp=short, **options).path, device)
    return Drafter(model, backend, short, SUBSET if short else None)


def check_drafts(made: Drafter, *, sharp: bool) -> None:
    run = made.backend.compile_block_draft(made.forward, made.new_state(), plan_of(made, STOPS))
    lengths = set()
    for seed in range(12):
        step, asks = random_block(made, np.random.default_rng(seed), 1 + seed % 4, sharp=sharp)
        got = run(step, asks)
        assert_alike(got, drafts_by_row(made, step, asks, STOPS))
        lengths |= {len(tokens) for tokens in got.tokens}
    assert min(lengths) == 0
    assert max(lengths) > 3
