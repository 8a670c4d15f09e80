"""Laws of whole texts: what they are by definition, and whether many texts are of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Text = tuple[int, ...]
LogitsAfter = Callable[[list[int]], NDArray[np.float32]]  # of the token after these


def law_of_texts(
    prompt: Sequence[int],
    n_tokens: int,
    sampling: SamplingParams,
    logits_after: LogitsAfter,
    eog_ids: Collection[int] = (),
) -> dict[Text, float]:
    """The probability of each text of so many tokens, or fewer that end it."""
    chances: dict[Text, float] = {}

    def follow(sampler: Sampler, text: list[int], chance: float) -> None:
        made = tuple(text[len(prompt) :])
        if len(made) == n_tokens or (made and made[-1] in eog_ids):
            chances[made] = chance
            return
        distribution = sampler.distribution(logits_after(text), text, len(text))
        for token, share in zip(
            distribution.ids.tolist(), distribution.probabilities.tolist(), strict=True
        ):
            twin = sampler.copy()
            twin.accept(token)
            follow(twin, [*text, token], chance * share)

    sampler = Sampler(sampling, n_vocab=logits_after(list(prompt)).size)
    sampler.begin(prompt)
    follow(sampler, list(prompt), 1.0)
    return chances


def surprise(found: Counter[Text], chances: Mapping[Text, float]) -> float:
    """How far the frequencies of texts are from their law, in standard deviations of chi-square.
    Below 4 is chance."""
    if found.keys() - chances.keys():
        return math.inf
    n_runs = found.total()
    # Rare ones are counted together.
    common = {text: chance for text, chance in chances.items() if chance * n_runs >= 5}
    pairs = [(found[text], chance * n_runs) for text, chance in common.items()]
    rest = n_runs - sum(n for n, _ in pairs), n_runs - sum(n for _, n in pairs)
    if rest[1] >= 5:
        pairs.append(rest)
    chi_square = sum((n - wanted) ** 2 / wanted for n, wanted in pairs)
    return (chi_square - (len(pairs) - 1)) / math.sqrt(2 * (len(pairs) - 1))
