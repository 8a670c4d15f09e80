"""Two short texts that a drafter drafts alone: what it brings to a model, before it is trusted."""

from __future__ import annotations

import logging
from typing import Final

from .generation import GenerateParams
from .models.drafters.eagle3 import Eagle3
from .runtime import Runtime
from .sampling.params import SamplingParams
from .speculation.drafter_results import DrafterResult
from .speculation.options import EAGLE3, SpecOptions

logger = logging.getLogger(__name__)

TEXTS: Final = (
    "The river rises in the mountains in the north of the country. From there it flows",
    "def mean(values: list[float]) -> float:\n    ",
)
N_TOKENS: Final = 48  # of each text
N_DRAFT: Final = 3


def try_drafter(runtime: Runtime, name: str, *, keeps: bool = True) -> DrafterResult:
    """Greedy, with drafts of three tokens at every step, and with a whole head: a short one depends
    on what was written before. `keeps` the outcome for later runs."""
    found = DrafterResult()
    spec = SpecOptions(types=(name,), fixed=True, draft_n_max=N_DRAFT, draft_vocab="full")
    alone = runtime.beside(spec, keeps=keeps)
    greedy = SamplingParams(temperature=0.0)
    try:
        for text in TEXTS:
            prompt = runtime.tokenizer.encode(text)[: max(runtime.n_ctx // 2, 1)]
            n = min(N_TOKENS, runtime.n_ctx - len(prompt))
            for _ in alone.generate(prompt, GenerateParams(greedy, max_tokens=n, ignore_eos=True)):
                pass
            found.drafts += alone.stats.drafts
            found.drafted += alone.stats.draft_n
            found.accepted += alone.stats.draft_n_accepted
    finally:
        alone.drop_engine()
    return found


def settle_doubts(runtime: Runtime) -> None:
    """Files of EAGLE3 that do not say which row a drafted one goes on from: both are tried once,
    and the better one is taken, now and in later runs."""
    for network in runtime.model.drafters.get(EAGLE3, ()):
        if not isinstance(network, Eagle3) or not network.is_unsure:
            continue
        kept = runtime.result_files.get(EAGLE3)
        known = kept.read().feeds_normed if kept is not None else None
        network.feeds_normed = _is_better_normed(runtime, network) if known is None else known
        if kept is not None and known is None:
            kept.settle(feeds_normed=network.feeds_normed)


def _is_better_normed(runtime: Runtime, network: Eagle3) -> bool:
    lengths = []
    for network.feeds_normed in (False, True):
        lengths.append(try_drafter(runtime, EAGLE3, keeps=False).length)
    before, behind = lengths
    logger.warning(
        "the EAGLE3 drafter's file leaves open whether drafted rows go on before the last norm or "
        "behind it: measured %.2f and %.2f tokens per step, so %s is taken (eagle3.norm_output in "
        "the file would say it)",
        before, behind, "the latter" if behind > before else "the former",
    )  # fmt: skip
    return behind > before
