"""Texts that drafters are trained on: mostly what the target writes itself behind given openings.

A drafter meets the target's own text, so the target continues the first lines of definitions and
files, by its file's sampling and greedily. Pieces of files are the rest: prompts look like them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ...core.generation import GenerateParams
from ...core.runtime import Runtime
from ...core.sampling.params import SamplingParams
from .opening_lines import OpeningLines

LENGTH = 448  # tokens of a text, at most
N_WRITTEN = 112  # tokens that the target writes, at most
SHORT = 80  # tokens of a short opening, at most
N_AT_ONCE = 24
GREEDY_SHARE, PIECE_SHARE = 0.3, 0.3
LONG_SHARE = 0.4  # of the openings: pieces of files, as where a prompt has a context
SHORT_FILE_SHARE = 0.25  # of the openings
MOST_LINES = 3  # of a short opening

Text = list[int]  # token ids, from the token on that begins every text


def draft_texts(runtime: Runtime, lines: OpeningLines, n: int, seed: int) -> Iterator[Text]:
    """`n` texts, in batches as the target writes them."""
    rng = random.Random(f"draft texts {seed}")
    for first in range(0, n, N_AT_ONCE):
        batch = min(N_AT_ONCE, n - first)
        n_pieces = round(PIECE_SHARE * batch)
        yield from (_piece(runtime, lines, rng) for _ in range(n_pieces))
        openings = [opening(runtime, lines, rng) for _ in range(batch - n_pieces)]
        yield from continued(runtime, openings, rng)


def opening(runtime: Runtime, lines: OpeningLines, rng: random.Random) -> Text:
    if rng.random() < LONG_SHARE:
        return _piece(runtime, lines, rng)[: rng.randint(SHORT // 2, LENGTH - N_WRITTEN)]
    is_file = bool(lines.short) and rng.random() < SHORT_FILE_SHARE
    whole = rng.choice(lines.short) if is_file else lines.definition(rng)
    kept = whole.splitlines(keepends=True)[: rng.choice((1, 1, 1, rng.randint(1, MOST_LINES)))]
    text = "".join(kept)
    if rng.random() < 0.7:
        text = text.rstrip("\n")
    return runtime.tokenizer.encode(text, parse_special=False)[:SHORT]


def _piece(runtime: Runtime, lines: OpeningLines, rng: random.Random) -> Text:
    """Of a file, from the beginning of a line on."""
    whole = rng.choice(lines.files).splitlines(keepends=True)
    first = rng.randrange(max(1, len(whole) - LENGTH // 10))
    text = "".join(whole[first : first + LENGTH // 2])[: 8 * LENGTH]
    return runtime.tokenizer.encode(text, parse_special=False)[:LENGTH]


def continued(runtime: Runtime, openings: Sequence[Text], rng: random.Random) -> list[Text]:
    """By the target, up to its end or `N_WRITTEN` tokens."""
    usual = replace(SamplingParams(), **runtime.recommended_sampling)
    engine = runtime.new_engine(runtime.plan(len(openings)))
    sequences = []
    for text in openings:
        sampling = replace(usual, seed=rng.randrange(1 << 31))
        if rng.random() < GREEDY_SHARE:
            sampling = SamplingParams(temperature=0.0)
        params = GenerateParams(sampling, max_tokens=N_WRITTEN, reuse=False)
        sequences.append(engine.add(text, params))
    while engine.has_work:
        engine.step()
    return [list(sequence.tokens) for sequence in sequences]
