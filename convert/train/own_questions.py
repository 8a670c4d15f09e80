"""Questions that a target asks itself: it writes the user's turn of its own chat template.

A drafter that learned behind a few hundred templates drafts worse behind other prompts. What a
model writes in a user's place is as varied as what it was tuned on (arXiv 2406.08464).
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from ...core.bench.prompt_tokens import PromptRenderer
from ...core.bench.record import Prompt
from ...core.generation import GenerateParams
from ...core.runtime import Runtime
from ...core.sampling.params import SamplingParams

LONGEST_QUESTION: Final = 96  # tokens
# As the model would write with nothing cut off but what is very unlikely.
SAMPLING: Final = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.02)


class OwnQuestions:
    def __init__(self, runtime: Runtime, renderer: PromptRenderer, longest_request: int) -> None:
        self._decode = runtime.tokenizer.decode
        self.opening = renderer.user_opening()
        if len(self.opening) + LONGEST_QUESTION > longest_request:
            self.opening = []

    def params(self, seed: int) -> GenerateParams:
        sampling = replace(SAMPLING, seed=seed)
        return GenerateParams(sampling, max_tokens=LONGEST_QUESTION, reuse=False)

    def prompt(self, stand_in: Prompt, written: list[int], *, is_cut: bool) -> Prompt:
        """What the target wrote behind the opening; of a question that was cut, its first
        paragraph."""
        text = self._decode(written).strip()
        if is_cut:
            text = text.split("\n\n")[0].strip()
        return replace(stand_in, turns=(text,)) if text else stand_in
