"""`--verify-lossless`: the verdict as lines, as JSON and as an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from .console import Console, print_error

if TYPE_CHECKING:
    from ..core.audit import AuditedRow, BestTokens, Difference, Verdict
    from ..core.tokenizer import Tokenizer


def fail_if_different(verdict: Verdict, tokenizer: Tokenizer, output: Console) -> None:
    difference = verdict.difference
    if difference is None:
        output.remark(f"lossless: {verdict.n_tokens} tokens, logits equal")
        return
    print_error(f"not lossless: {difference_line(difference, tokenizer)}")
    for title, row in (("with speculation", difference.written), ("without", difference.plain)):
        best = "the text has ended" if row is None else best_line(row.best, tokenizer)
        output.remark(f"  {title:<18}{best}")
    raise typer.Exit(1)


def difference_line(difference: Difference, tokenizer: Tokenizer) -> str:
    """Tokens are counted from 0, as in the list that --json prints."""
    at, written, plain = f"token {difference.place}", difference.written, difference.plain
    if written is None or plain is None:
        longer = "without" if written is None else "with"
        return f"{at} is there only {longer} speculation"
    drafted = f" (source: {written.source})"
    margin = f"the best token's margin without speculation is {plain.margin:.6g}"
    if difference.same_token:
        return f"{at} is the same{drafted}, but its logits differ; {margin}"
    mine, own = spelt(written.token, tokenizer), spelt(plain.token, tokenizer)
    why = "although its logits are equal" if difference.same_logits else "and its logits differ"
    return f"{at} is {mine}{drafted} instead of {own}, {why}; {margin}"


def best_line(best: BestTokens, tokenizer: Tokenizer) -> str:
    # Nine digits distinguish any two float32 numbers.
    return "  ".join(f"{spelt(token, tokenizer)} {logit:.9g}" for token, logit in best)


def verdict_fields(verdict: Verdict | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the fields for `--json`; none without --verify-lossless."""
    if verdict is None:
        return {}
    found = verdict.difference
    if found is None:
        return {"lossless": True}
    difference = {
        "position": found.place,
        "margin": None if found.plain is None else found.plain.margin,
        "with_speculation": row_fields(found.written, tokenizer),
        "without": row_fields(found.plain, tokenizer),
    }
    return {"lossless": False, "difference": difference}


def row_fields(row: AuditedRow | None, tokenizer: Tokenizer) -> dict[str, Any] | None:
    if row is None:
        return None
    best = [{"token": id, "text": text_of(id, tokenizer), "logit": x} for id, x in row.best]
    return {"token": row.token, "source": row.source, "top_logits": best}


def spelt(token: int, tokenizer: Tokenizer) -> str:
    return repr(text_of(token, tokenizer))


def text_of(token: int, tokenizer: Tokenizer) -> str:
    return tokenizer.piece(token, show_special=True).decode("utf-8", "replace")
