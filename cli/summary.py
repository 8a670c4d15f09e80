"""The lines on stderr about the model and an answer's times and drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .print_answer import PrintedAnswer

if TYPE_CHECKING:
    from ..core.generation import Stats
    from ..core.runtime import Runtime
    from ..core.speculation.draft_file import DraftFile
    from ..core.state.budget import MemoryBudget


SHOWN_PLACES: Final = 8  # of a draft; n-grams draft 64


def model_lines(runtime: Runtime, budget: MemoryBudget) -> list[str]:
    """`budget`: of all sequences that are to be written at once."""
    details = runtime.backend.details
    return [
        f"model      {runtime.name} ({runtime.architecture})",
        f"device     {runtime.device}" + (f" ({details})" if details else ""),
        *(f"           {line}" for line in runtime.backend.holdings),
        f"context    {runtime.n_ctx} tokens, vocabulary {runtime.n_vocab}",
        f"memory     {budget.describe()}",
        *(line for each in runtime.draft_files for line in _draft_file_lines(runtime, each)),
    ]


def _draft_file_lines(runtime: Runtime, draft: DraftFile) -> list[str]:
    found = " (found beside the model; -md none leaves it out)" if draft.is_companion else ""
    lines = [f"drafter    {draft.drafter}: {draft.file.label}{found}"]
    result = runtime.result_files[draft.drafter].read()
    before = ""
    if result.drafts:
        before = f"; before: {result.describe()}" + (", which is bad" if result.is_poor else "")
    return [*lines, f"           {draft.file.n_bytes / 1e6:.1f} MB beside the model{before}"]


def summary_lines(answer: PrintedAnswer, *, verbose: bool) -> list[str]:
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


def images_line(runtime: Runtime, n: int) -> str:
    encoder = runtime.images
    return f"images     {n}, {encoder.n_rows} tokens, encoded in {encoder.ms:.0f} ms"


def idle_lines(runtime: Runtime, stats: Stats) -> list[str]:
    """Return a line for each drafter that hardly drafted, with the reason."""
    idle = runtime.idle_drafters(stats.steps, stats.by_source)
    return [f"idle       {name}: {reason}" for name, reason in idle.items()]


def turn_line(answer: PrintedAnswer) -> str:
    """Return the summary of one answer of a conversation."""
    stats = answer.stats
    ending = "" if answer.stop_reason == "eos" else f", stopped: {answer.stop_reason}"
    drafted = f", {stats.mean_accept_len:.2f} tokens per step" if stats.draft_n else ""
    return speed(stats.predicted_n, stats.predicted_ms) + drafted + ending


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
        f"{stats.mean_accept_len:.2f} tokens per step{_by_place(stats, verbose=verbose)}"
    ]
    if verbose and stats.by_source:
        width = max(map(len, stats.by_source))
        lines.append(f"  {'source':<{width}}  drafted  accepted     %        ms")
        for name, source in stats.by_source.items():
            share = source.accepted / source.drafted if source.drafted else 0.0
            lines.append(
                f"  {name:<{width}}  {source.drafted:7}  {source.accepted:8}  {share:4.0%}  "
                f"{source.ms:8.1f}"
            )
    return lines


def _by_place(stats: Stats, *, verbose: bool) -> str:
    """Return the acceptance rates by position in the draft, in percent."""
    rates = [
        f"{100 * accepted / drafted:.0f}"
        for accepted, drafted in zip(stats.accept_per_pos, stats.draft_per_pos, strict=False)
    ]
    if not rates:
        return ""
    is_cut = len(rates) > SHOWN_PLACES and not verbose
    shown = " ".join(rates[:SHOWN_PLACES] if is_cut else rates)
    return f"; by place {shown}{' ...' if is_cut else ''} %"
