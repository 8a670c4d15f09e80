"""Bits: a row's logits are the same whatever runs beside it, and so is the text."""

from __future__ import annotations

import zlib

import numpy as np

from nextn.core.backend.interface import HostOutput
from nextn.core.backend.layers import Floats
from nextn.core.backend.step import StepPart, build_step, pending_accepted_after
from nextn.core.engine.engine import Engine
from nextn.core.generation import GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import NGRAM_SIMPLE, NgramSizes, SpecOptions

from ..figures import Figure
from ..spec_runs import PLAIN, Dictated, Task, fixed_mtp, new_engine, write
from .loaded import Loaded, Steps

ROWS, OTHERS, PAST = 8, 8, 3  # OTHERS: sequences in one step
REPEATED = 12  # tokens of the prompt that a text repeats


def bits(loaded: Loaded, seconds: float) -> list[Figure]:
    """Counts of what differs; all have to be 0."""
    steps = Steps(loaded, 64, n_slots=OTHERS)
    tokens = loaded.tokens(PAST + ROWS, 3)
    alone = _one_by_one(steps, tokens, slot=0)
    wide = _logits(steps, [_begun(steps, tokens[:PAST], 1, tokens[PAST:])])
    beside = _among(loaded, steps, tokens)
    faults = int((~np.isfinite(alone)).sum())
    return [
        Figure("logits that are not finite", faults, at_most=0),
        Figure(f"{ROWS} rows at once or one by one: other bits", _differ(alone, wide), at_most=0),
        Figure(f"alone or among {OTHERS}: other bits", _differ(alone, beside), at_most=0),
        *_texts(loaded),
        *_held(loaded),
    ]


def _one_by_one(steps: Steps, tokens: list[int], slot: int) -> Floats:
    replay = _prompt(steps, tokens[:PAST], slot)
    rows = []
    for past in range(PAST, len(tokens)):
        rows.append(_logits(steps, [steps.piece(tokens[past : past + 1], past, slot, replay)]))
        replay = pending_accepted_after(replay, 1, 1, steps.state.window)
    return np.concatenate(rows)


def _among(loaded: Loaded, steps: Steps, tokens: list[int]) -> Floats:
    """The same rows in the last of several sequences, with other numbers of rows beside them."""
    pieces = []
    for b in range(OTHERS - 1):
        own = loaded.tokens(PAST + 1 + b % 5, 50 + b)
        pieces.append(_begun(steps, own[:PAST], b, own[PAST:]))
    mine = _begun(steps, tokens[:PAST], OTHERS - 1, tokens[PAST:])
    return _logits(steps, [*pieces, mine])[-ROWS:]


def _begun(steps: Steps, prompt: list[int], slot: int, tokens: list[int]) -> StepPart:
    """The next rows of a sequence whose prompt is read here."""
    return steps.piece(tokens, len(prompt), slot, _prompt(steps, prompt, slot))


def _prompt(steps: Steps, tokens: list[int], slot: int) -> int:
    """Factors that are pending then."""
    _logits(steps, [steps.piece(tokens, 0, slot, 0)])
    return pending_accepted_after(0, len(tokens), len(tokens), steps.state.window)


def _logits(steps: Steps, pieces: list[StepPart]) -> Floats:
    return steps.run(build_step(pieces)).logits.copy()


def _differ(a: Floats, b: Floats) -> int:
    assert a.shape == b.shape
    return int((a.view(np.uint32) != b.view(np.uint32)).sum())


def _texts(loaded: Loaded) -> list[Figure]:
    """Written with real drafts and without, greedily and with noise."""
    scale, engines = loaded.scale, {}
    engines["plain"] = new_engine(loaded.runtime, PLAIN)
    engines["mtp"] = new_engine(loaded.runtime, fixed_mtp(min(3, max(scale.mtp))))
    figures = []
    for temperature in (0.0, 1.0):
        task = Task(loaded.tokens(scale.n_prompt, 11), scale.tokens)
        texts = [write(e, task, temperature, 5, name).tokens for name, e in engines.items()]
        other = sum(a != b for a, b in zip(*texts, strict=True))
        name = f"tokens with and without drafts at {temperature:g}: different"
        figures.append(Figure(name, other, at_most=0))
    return figures


def _held(loaded: Loaded) -> list[Figure]:
    """The target is made to repeat its prompt, so that drafts hold; the logits of each token are
    held against those of a text without drafts."""
    scale = loaded.scale
    sizes = NgramSizes(size_n=4, size_m=max(scale.widths) - 1)
    drafting = SpecOptions(types=(NGRAM_SIMPLE,), fixed=True, ngram_simple=sizes)
    piece, n = loaded.tokens(REPEATED, 9), scale.tokens + 2 * max(scale.widths)
    script = (piece * (2 + n // REPEATED))[: n + 1]
    plain, _ = _dictated(new_engine(loaded.runtime, PLAIN), piece, script)
    drafted, n_held = _dictated(new_engine(loaded.runtime, drafting), piece, script)
    other = sum(a != b for a, b in zip(plain, drafted, strict=True))
    return [
        Figure("draft tokens that held", n_held, at_least=1),
        Figure("tokens with and without them: other bits", other, at_most=0),
    ]


def _dictated(engine: Engine, prompt: list[int], script: list[int]) -> tuple[list[int], int]:
    """A number of each token's logits, and how many draft tokens were accepted."""
    found: list[int] = []

    def keep(token: int, source: str, output: HostOutput, row: int) -> None:
        found.append(zlib.crc32(output.logits[row].tobytes()))

    engine._verifier = Dictated(script)
    greedy = SamplingParams(temperature=0.0)
    text = engine.add(prompt, GenerateParams(greedy, max_tokens=len(script) - 1, ignore_eos=True))
    text.on_row = keep
    while engine.has_work:
        engine.step()
    return found, text.stats.draft_n_accepted
