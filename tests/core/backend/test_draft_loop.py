"""What drafting in one call means: one text alone, one row at a time, with nothing shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace
from support.draft_loops import MAX_DRAFT, PAGE_LEN, WINDOW, Drafter, Texts, assert_alike
from support.running import load
from support.tiny_models import TinyModel

from nextn.core.backend.interface import DraftLoopPlan, Drafts, DraftSettings, HostOutput, Taps
from nextn.core.backend.step import StepPart, build_step, pending_accepted_after
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.sampling.draft_sampler import DraftSampler
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Tiny = Callable[..., TinyModel]
KINDS = {"mtp": ("qwen35", True), "attention": ("qwen3", False), "recurrent": ("qwen35", False)}


@cache
def drafter(tiny: Tiny, device: str, kind: str, n_taken: int = 0) -> Drafter:
    family, is_head = KINDS[kind]
    model, backend = load(tiny(family, mtp=is_head).path, device)
    vocab_subset = np.arange(3, 3 + 2 * n_taken, 2, dtype=np.int32) if n_taken else None
    return Drafter(model, backend, is_head, vocab_subset)


class Naive:
    """Rows of one text after the other, each as a step of its own, with the whole head."""

    def __init__(self, made: Drafter) -> None:
        self.made = made
        taps: Taps = frozenset() if made.tap is None else frozenset({made.tap})
        model = made.model
        forward = model.nextn[0].forward if made.is_head else model.forward
        self.run = made.backend.compile(forward, made.new_state(), max_rows=1, taps=taps)
        self.n_pending_accepted: dict[int, int] = {}  # by slot

    def draft(
        self, piece: StepPart, hidden: np.ndarray | None, ask: DraftSettings, stops: Sequence[int]
    ) -> tuple[list[int], list[float]]:
        tokens: list[int] = []
        chances: list[float] = []
        past, position = piece.past, piece.first_position or piece.past
        replay = self.n_pending_accepted.get(piece.slot, 0)
        rows = list(piece.tokens)
        row = None
        for i in range(len(rows) + max(ask.length - 1, 0)):
            token = rows[i] if i < len(rows) else tokens[-1]
            if hidden is not None and i < len(rows):
                row = hidden[i : i + 1]
            step = build_step(
                [StepPart([token], past, piece.pages, piece.slot, replay, position)], row
            )
            output = self.run(step)
            past, position, replay = (
                past + 1,
                position + 1,
                pending_accepted_after(replay, 1, 1, WINDOW),
            )
            row = output.taps[H_NEXTN].copy() if hidden is not None else None
            self.n_pending_accepted[piece.slot] = replay
            if i >= len(rows) - 1 and ask.length:
                logits = self.known(output.logits[0])
                token = ask.picker.pick(HostOutput(logits[None], {}), 0, position)
                weights = np.exp(
                    (logits.astype(np.float64) - logits.max()) * ask.inverse_temperature
                )
                chance = float(weights[token] / weights.sum())
                if token in stops or chance < ask.p_min:
                    break
                ask.picker.accept(token)
                tokens.append(token)
                chances.append(chance)
        return tokens, chances

    def known(self, logits: np.ndarray) -> np.ndarray:
        vocab_subset = self.made.vocab_subset
        if vocab_subset is None:
            return logits
        out = np.full_like(logits, -np.inf)
        out[vocab_subset] = logits[vocab_subset]
        return out


@pytest.mark.parametrize("n_taken", [0, 50])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_chain_is_one_row_after_the_other(
    tiny: Tiny, device: str, kind: str, n_taken: int
) -> None:
    made = drafter(tiny, device, kind, n_taken if KINDS[kind][1] else 0)
    stops = (4, 17, 120)
    for seed in range(4):
        naive, run = Naive(made), made.run(made.new_state(), stops)
        texts = Texts(made, np.random.default_rng(seed), 1 + seed)
        for turn in range(3):
            pasts = [text.n_cells for text in texts.texts]
            step, asks = texts.round()
            if kind == "recurrent" and turn < 2:  # a draft would be part of the state
                asks = [replace(ask, length=0) for ask in asks]
            got = run(step, asks)
            want = Drafts([], [])
            for b, text in enumerate(texts.texts):
                rows = step.rows(b)
                tokens, first = step.tokens[rows].tolist(), int(step.positions[rows][0])
                piece = StepPart(tokens, pasts[b], text.pages, text.slot, first_position=first)
                hidden = None if step.hidden is None else step.hidden[rows]
                found = naive.draft(piece, hidden, asks[b], stops)
                want.tokens.append(found[0])
                want.chances.append(found[1])
            assert_alike(got, want)


def test_samplers_that_remember_see_their_own_draft(tiny: Tiny, device: str) -> None:
    """A repeat penalty that forbids what was said: no token comes twice, and none of the text."""
    made = drafter(tiny, device, "attention")
    params = SamplingParams(temperature=0.0, repeat_penalty=1e6, samplers=("penalties",))
    sampler = Sampler(params, n_vocab=made.n_vocab)
    text = [1, 2, 3]
    sampler.begin(text)
    picker = DraftSampler(sampler)
    run = made.run(made.new_state())
    drafts = []
    for _ in range(2):
        picker.restart(text)
        drafts.append(
            run(build_step([StepPart(text, 0, range(6))]), [DraftSettings(picker, MAX_DRAFT)])
        )
    (tokens,) = drafts[0].tokens
    assert len({*text, *tokens}) == len(text) + MAX_DRAFT
    assert drafts[1] == drafts[0], "the text's sampler was not touched"


@pytest.mark.parametrize("vocab_subset", [[], [3, 3], [5, 4], [-1, 2], [0, 512]])
def test_tokens_of_a_short_head_are_checked(vocab_subset: list[int]) -> None:
    with pytest.raises(ValueError, match="must ascend"):
        DraftLoopPlan(8, 4, 512, vocab_subset=np.array(vocab_subset, np.int32))


def test_cells_of_a_draft_are_of_no_consequence(tiny: Tiny, device: str) -> None:
    """What a draft wrote is overwritten by the rows that turn out true."""
    made = drafter(tiny, device, "attention")
    picker = DraftSampler(Sampler(SamplingParams(temperature=0.0), n_vocab=made.n_vocab))
    pages = range(6)
    drafted, fresh = made.run(made.new_state()), made.run(made.new_state())
    for run, length in ((drafted, MAX_DRAFT), (fresh, 0)):
        run(build_step([StepPart([1, 2, 3], 0, pages)]), [DraftSettings(picker, length)])
    after = build_step([StepPart([9] * PAGE_LEN, 3, pages)])
    assert drafted(after, [DraftSettings(picker, 3)]) == fresh(after, [DraftSettings(picker, 3)])
