"""The auditor: was a text that was written with speculation the model's own, to the last bit?

The same request is run again without speculation, and every token and every row of logits is
compared. Of a row that was written, a hash is kept and its best tokens: what is needed to say
that two rows differ, and how.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from .backend.interface import HostOutput
from .generation import NO_TOKEN, GenerateParams
from .sampling.candidates import best_rows

if TYPE_CHECKING:
    from .runtime import Runtime
    from .state.embedded_rows import ModelPrompt

N_BEST: Final = 5  # tokens of a row that are kept
CHECKING: Final = "checking against plain decoding"
_REPORT_EVERY: Final = 16  # tokens

BestTokens = tuple[tuple[int, float], ...]  # tokens and their logits, best first


class AuditedRow(Struct, frozen=True):
    """A token of the text, and what it was picked from."""

    token: int
    source: str
    digest: bytes  # of all logits
    best: BestTokens

    @property
    def margin(self) -> float:
        """How much the best token is ahead of the second."""
        return self.best[0][1] - self.best[1][1] if len(self.best) > 1 else 0.0


class RowRecorder:
    """Records every row that the runtime reports (a `RowObserver`)."""

    def __init__(self) -> None:
        self.rows: list[AuditedRow] = []

    def __call__(self, token: int, source: str, output: HostOutput, row: int) -> None:
        logits = output.logits[row]
        maxima = None if output.maxima is None else output.maxima[row]
        ids = best_rows(logits, min(N_BEST, logits.size), maxima)
        best = tuple(zip(ids.tolist(), logits[ids].tolist(), strict=True))
        self.rows.append(AuditedRow(token, source, sha256(logits).digest(), best))


class Difference(Struct, frozen=True):
    """The first difference. A text that has ended there has no row."""

    place: int  # tokens of the text before it
    written: AuditedRow | None
    plain: AuditedRow | None

    @property
    def same_token(self) -> bool:
        return (
            self.written is not None
            and self.plain is not None
            and self.written.token == self.plain.token
        )

    @property
    def same_logits(self) -> bool:
        return (
            self.written is not None
            and self.plain is not None
            and self.written.digest == self.plain.digest
        )


class Verdict(Struct, frozen=True):
    n_tokens: int  # that were compared and found equal
    difference: Difference | None

    @property
    def is_lossless(self) -> bool:
        return self.difference is None


def audit(
    runtime: Runtime,
    prompt: str | Sequence[int] | ModelPrompt,
    params: GenerateParams,
    written: Sequence[AuditedRow],
) -> Verdict:
    """Generate the text again without speculation, as far as both agree."""
    recorder, n = RowRecorder(), 0
    for event in runtime.generate(prompt, params, plainly=True, on_row=recorder):
        if event.token == NO_TOKEN:
            break
        if difference := _compare(n, written, recorder.rows):
            return Verdict(n, difference)
        n += 1
        if n % _REPORT_EVERY == 0:
            runtime.backend.report(CHECKING, n / len(written))
    runtime.backend.report(CHECKING, 1.0)
    return Verdict(n, None if n == len(written) else Difference(n, written[n], None))


def _compare(
    place: int, written: Sequence[AuditedRow], plain: Sequence[AuditedRow]
) -> Difference | None:
    ours, theirs = written[place] if place < len(written) else None, plain[place]
    found = Difference(place, ours, theirs)
    return None if found.same_token and found.same_logits else found
