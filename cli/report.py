"""The lines beside the text: about the model, and what an answer took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .answer import Answer

if TYPE_CHECKING:
    from ..core.generation import Stats
    from ..core.runtime import Runtime


def model_lines(runtime: Runtime) -> list[str]:
    details = runtime.backend.details
    return [
        f"model      {runtime.name} ({runtime.architecture})",
        f"device     {runtime.device}" + (f" ({details})" if details else ""),
        f"context    {runtime.n_ctx} tokens, vocabulary {runtime.n_vocab}",
        f"memory     {runtime.budget.describe()}",
    ]


def summary_lines(answer: Answer, *, verbose: bool) -> list[str]:
    stats = answer.stats
    lines = []
    if stats.steps:
        lines += [_prompt_line(stats), f"generated  {speed(stats.predicted_n, stats.predicted_ms)}"]
    elif stats.prompt_n:
        lines.append(f"prompt     {stats.prompt_n} tokens, not read to the end")
    if stats.draft_n:
        lines += _draft_lines(stats, verbose=verbose)
    sampling = answer.params.sampling
    # Greedy decoding draws no random number.
    seed = f", seed {sampling.seed}" if sampling.temperature else ""
    return [*lines, f"stopped    {answer.stop_reason}{seed}"]


def turn_line(answer: Answer) -> str:
    """One answer of a conversation."""
    stats = answer.stats
    ending = "" if answer.stop_reason == "eos" else f", stopped: {answer.stop_reason}"
    return speed(stats.predicted_n, stats.predicted_ms) + ending


def speed(n_tokens: int, milliseconds: float) -> str:
    rate = f", {1000 * n_tokens / milliseconds:.1f} tokens/s" if milliseconds > 0 else ""
    return f"{n_tokens} tokens in {milliseconds:.0f} ms{rate}"


def _prompt_line(stats: Stats) -> str:
    cached = f", {stats.cached_n} more from the cache" if stats.cached_n else ""
    return f"prompt     {speed(stats.prompt_n - stats.cached_n, stats.prompt_ms)}{cached}"


def _draft_lines(stats: Stats, *, verbose: bool) -> list[str]:
    share = stats.draft_n_accepted / stats.draft_n
    lines = [
        f"drafted    {stats.draft_n} tokens, {stats.draft_n_accepted} accepted ({share:.0%}), "
        f"{stats.mean_accept_len:.2f} tokens per step"
    ]
    if verbose:
        for name, source in stats.by_source.items():
            lines.append(f"  {name}: {source.accepted} of {source.drafted}, {source.ms:.0f} ms")
        lines.append(f"  by place: {' '.join(map(str, stats.accept_per_pos))}")
    return lines
