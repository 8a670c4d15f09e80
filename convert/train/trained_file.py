"""The file of a trained drafter: measured as it will run, with a record of its training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field

from ... import core
from ...core.bench.prompt_tokens import PromptRenderer
from ...core.bench.record import Prompt
from ...core.errors import ConfigError
from ...core.generation import GenerateParams
from ...core.models.drafters.training_record import TrainingRecord, record_entries
from ...core.sampling.params import SamplingParams
from ...core.speculation.options import SpecOptions
from .answer_writing import LONGEST_REQUEST, request_tokens
from .drafter_run import STEP_WEIGHTS, TrainedDrafter, Voice, size

N_DRAFTED: Final = len(STEP_WEIGHTS)
N_WRITTEN: Final = 96  # tokens behind each prompt
MOST_PROMPTS: Final = 16
N_CTX: Final = LONGEST_REQUEST + N_WRITTEN
ENOUGH: Final = 0.98  # of the length in half precision: then fewer bits are enough
KINDS: Final = ("F16", "Q8_0", "Q4_1")  # of matrices, each smaller than the one before


class RunAcceptance(Struct):
    """Over several texts, `N_DRAFTED` tokens drafted at each step."""

    tokens: int = 0
    steps: int = 0
    drafts: list[int] = field(default_factory=list)  # that had a token at each place
    accepted: list[int] = field(default_factory=list)  # of these

    @property
    def length(self) -> float:
        """Tokens that come out of a step."""
        return self.tokens / self.steps if self.steps else 1.0

    @property
    def by_place(self) -> list[float]:
        """Of all drafts, those whose token at each place was accepted."""
        n = max(1, self.drafts[0] if self.drafts else 1)
        return [accepted / n for accepted in self.accepted]


class WrittenDrafter(Struct):
    kind: str  # of the matrices
    measured: RunAcceptance
    line: str  # what was compared
    before: RunAcceptance | None  # of the drafter that it began as


def write_trained(
    output: Path,
    model: Path,
    trained: TrainedDrafter,
    sampling: SamplingParams,
    folder: Path,
    threads: int | None,
    voice: Voice,
) -> WrittenDrafter:
    """In as few bits as cost no acceptance. `folder`: for files that are tried."""
    found: dict[str, tuple[RunAcceptance, int]] = {}
    made, before = trained.kind, None
    if made.is_trained:
        voice.progress(f"measuring the acceptance of {made.begins}", 0.0)
        before = measure(model, made.start_from, made.name, trained.judged_by, sampling, threads)
    for kind in KINDS:
        voice.progress(f"measuring the acceptance as {kind}", 0.0)
        path = folder / f"{kind}.gguf"
        try:
            made.write(path, trained.network, trained.target, kind)
        except ConfigError:  # rows of this width are no whole blocks
            continue
        measured = measure(model, path, made.name, trained.judged_by, sampling, threads)
        found[kind] = measured, path.stat().st_size
        path.unlink()
    enough = ENOUGH * found[KINDS[0]][0].length
    kind = [kind for kind, (each, _) in found.items() if each.length >= enough][-1]
    measured = found[kind][0]
    keys = record_keys(trained, sampling, measured)
    made.write(output, trained.network, trained.target, kind, keys)
    line = ", ".join(
        f"{name} {each.length:.3f} tokens a step in {size(n)}" for name, (each, n) in found.items()
    )
    return WrittenDrafter(kind, measured, line, before)


def measure(
    model: Path,
    draft: Path | None,
    drafter: str,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    threads: int | None,
) -> RunAcceptance:
    """What the runtime accepts: each draft goes on from the drafter's own tokens."""
    spec = SpecOptions(types=(drafter,), draft_n_max=N_DRAFTED, fixed=True, draft_vocab="full")
    files = [] if draft is None else [draft]  # never one that lies beside the model
    total = RunAcceptance(drafts=[0] * N_DRAFTED, accepted=[0] * N_DRAFTED)
    with core.load(model, "cpu", n_ctx=N_CTX, threads=threads, draft=files, spec=spec) as runtime:
        params = GenerateParams(sampling, max_tokens=N_WRITTEN)
        for tokens in _spread(PromptRenderer(runtime), prompts):
            for _ in runtime.generate(tokens, params):
                pass
            stats = runtime.stats
            total.tokens += stats.predicted_n - 1  # the prompt's step makes the first one
            total.steps += stats.steps - 1
            for i, n in enumerate(stats.draft_per_pos[:N_DRAFTED]):
                total.drafts[i] += n
                total.accepted[i] += stats.accept_per_pos[i]
    return total


def _spread(renderer: PromptRenderer, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
    found = [request_tokens(renderer, prompt) for prompt in prompts]
    fitting = [tokens for tokens in found if 0 < len(tokens) <= LONGEST_REQUEST]
    every = max(1, -(-len(fitting) // MOST_PROMPTS))
    yield from fitting[::every]


def record_keys(
    trained: TrainedDrafter, sampling: SamplingParams, measured: RunAcceptance
) -> dict[str, Any]:
    plan = trained.plan
    record = TrainingRecord(
        target=plan.model,
        model=plan.model_name,
        texts=Path(plan.texts).name,
        kinds=tuple(f"{kind} {n}" for kind, n in trained.kinds.items()),
        text_count=plan.n_texts,
        token_count=trained.n_tokens,
        steps=plan.steps,
        minutes=plan.minutes,
        seed=plan.seed,
        temperature=sampling.temperature,
        acceptance=tuple(measured.by_place),
        tokens_per_step=measured.length,
    )
    return {
        "general.name": f"{plan.model_name} {trained.kind.title}",
        "general.base_model.count": 1,
        "general.base_model.0.name": plan.model_name,
        **record_entries(record),
    }
