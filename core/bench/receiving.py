"""The events of one request, as they come in, to one sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .dialects import EOS, STOP, ServerEvent
from .record import Chunk, Sample
from .rounds import TokenSources, by_place, chunks


class TokenCounters(NamedTuple):
    """What a server said about itself with a token."""

    predicted_n: int
    predicted_ms: float
    drafted: int
    accepted: int


class Receiver:
    """Tokens of one pass of the server's model come in events of their own, and only their common
    time stamp in `timings` tells; without it, what one read of the connection brought is taken to
    have come together."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.tokens: list[int] = []
        self.ending = ""
        self.timings: Mapping[str, Any] = {}
        self.usage: Mapping[str, Any] = {}
        self._told = TokenSources()
        self._chunks: list[Chunk] = []
        self._moments: list[TokenCounters] = []
        self._counted = 0  # tokens, as the server counts
        self._last_stamp: float | None = None  # its clock at the last event
        self._n_unknown = 0  # events that held text and no count

    def take(self, ms: float, pieces: list[ServerEvent]) -> None:
        """What one read brought."""
        has_token = False
        for piece in pieces:
            has_token |= self._take(ms, piece, is_first=not has_token)

    def _take(self, ms: float, piece: ServerEvent, *, is_first: bool) -> bool:
        """Was there a token in it? `is_first`: none was before it in this read."""
        self.ending = piece.ending or self.ending
        self.timings = piece.timings or self.timings
        self.usage = piece.usage or self.usage
        n = self._n_of(piece)
        self._note(piece)
        self._told.add(piece.told, ms)
        if not n and not piece.text:
            return False
        self.text.append(piece.text)
        self.tokens += piece.tokens
        stamp = _number(piece.timings, "predicted_ms")
        is_same_pass = stamp is not None and stamp == self._last_stamp
        follows = is_same_pass if stamp is not None else not is_first
        self._last_stamp = stamp
        if self._chunks and follows:
            n += self._chunks.pop().n
        self._chunks.append(Chunk(ms, n))
        self._n_unknown += 1 if not n else 0
        return True

    def _n_of(self, piece: ServerEvent) -> int:
        """Ids are the last resort of three: a token that ends within a character has no event."""
        counted = _number(piece.timings, "predicted_n")
        if counted is None:
            counted = _number(piece.usage, "completion_tokens")
        if counted is None:
            return len(piece.tokens)
        n = max(0, round(counted) - self._counted)
        self._counted = max(self._counted, round(counted))
        # A count with the last event alone is that of the whole text, not of the event.
        return n if (piece.text or piece.tokens) and not self._n_unknown else 0

    def _note(self, piece: ServerEvent) -> None:
        n, ms = _number(piece.timings, "predicted_n"), _number(piece.timings, "predicted_ms")
        if piece.timings is not None and n is not None and ms is not None and n > 0:
            drafted = _number(piece.timings, "draft_n") or 0
            accepted = _number(piece.timings, "draft_n_accepted") or 0
            self._moments.append(TokenCounters(round(n), ms, round(drafted), round(accepted)))

    def fill(self, sample: Sample) -> None:
        """Everything that is known once the stream has ended."""
        sample.text = "".join(self.text)
        sample.stop_reason = self.ending
        self._fill_counts(sample)
        sample.chunks = self._shared_out(sample.predicted_n)
        if self.tokens and len(self.tokens) == sample.predicted_n:
            sample.tokens = self.tokens
        if not self._fill_told(sample) and sample.draft_n is not None:
            self._fill_rounds(sample)

    def _fill_counts(self, sample: Sample) -> None:
        timings, usage = self.timings, self.usage
        predicted = _first(timings, "predicted_n", usage, "completion_tokens")
        seen = sum(chunk.n for chunk in self._chunks)
        sample.predicted_n = round(predicted) if predicted is not None else seen
        details = usage.get("prompt_tokens_details")
        cached = _first(timings, "cache_n", details if isinstance(details, dict) else {},
                        "cached_tokens") or 0  # fmt: skip
        sample.cached_n = round(cached)
        prompt = _number(usage, "prompt_tokens")
        if prompt is None:  # llama.cpp's timings leave out what came from the cache
            prompt = (_number(timings, "prompt_n") or 0) + cached
        sample.prompt_n = round(prompt)
        sample.prompt_ms = _number(timings, "prompt_ms") or 0.0
        sample.predicted_ms = _number(timings, "predicted_ms") or 0.0
        self._fill_drafts(sample)

    def _fill_drafts(self, sample: Sample) -> None:
        details = self.usage.get("completion_tokens_details")
        accepted = _number(details, "accepted_prediction_tokens")
        rejected = _number(details, "rejected_prediction_tokens")
        if _number(self.timings, "predicted_n") is not None:  # says nothing if nothing was drafted
            sample.draft_n = round(_number(self.timings, "draft_n") or 0)
            sample.draft_n_accepted = round(_number(self.timings, "draft_n_accepted") or 0)
        elif accepted is not None and rejected is not None:
            sample.draft_n = round(accepted + rejected)
            sample.draft_n_accepted = round(accepted)

    def _shared_out(self, n_all: int) -> list[Chunk]:
        """A server that counts at the end alone: one text chunk, one token, where that adds up."""
        if not self._n_unknown:
            return self._chunks
        if self._n_unknown == len(self._chunks) == n_all:
            return [Chunk(chunk.ms, 1) for chunk in self._chunks]
        return [Chunk(chunk.ms, 0) for chunk in self._chunks]

    def _fill_told(self, sample: Sample) -> bool:
        """By what was said of each token, if that is of all and adds up."""
        rounds = self._told.rounds()
        drafted, accepted = sum(r.drafted for r in rounds), sum(r.accepted for r in rounds)
        found = sum(r.n for r in rounds), drafted, accepted
        if not rounds or found != (sample.predicted_n, sample.draft_n, sample.draft_n_accepted):
            return False
        sample.chunks, sample.rounds = chunks(rounds), len(rounds) - 1
        per_place = by_place([(r.drafted, r.accepted) for r in rounds])
        sample.drafts, sample.drafted_per_pos, sample.accepted_per_pos = per_place
        return True

    def _fill_rounds(self, sample: Sample) -> None:
        """Each pass after the first token gave what was accepted, and one token more."""
        drafted, accepted = sample.draft_n or 0, sample.draft_n_accepted or 0
        is_cut = self.ending in (EOS, STOP)  # accepted, perhaps, and not shown
        if not is_cut:
            sample.rounds = max(0, sample.predicted_n - 1 - accepted)
        if not drafted:
            sample.drafts, sample.drafted_per_pos, sample.accepted_per_pos = 0, [], []
            return
        rounds = passes(self._moments, is_cut=is_cut)
        if rounds is None or sum(n for n, _ in rounds) != drafted:
            return
        sample.rounds = len(rounds)
        sample.drafts, sample.drafted_per_pos, sample.accepted_per_pos = by_place(rounds)


def passes(moments: list[TokenCounters], *, is_cut: bool) -> list[tuple[int, int]] | None:
    """(drafted, accepted) of each pass after the first token; None where two passes came as one,
    because the tokens of the first ended within a character."""
    if not moments or moments[0].predicted_n != 1:
        return None
    found = []
    before = moments[0]
    latest = before
    for now in moments[1:]:
        if now.predicted_ms == before.predicted_ms and now.drafted == before.drafted:
            latest = now  # another token of the pass
            continue
        drafted, accepted = now.drafted - before.drafted, now.accepted - before.accepted
        found.append((drafted, accepted))
        before = latest = now
    n_tokens = latest.predicted_n - 1
    n_expected = sum(accepted + 1 for _, accepted in found)
    is_whole = n_tokens <= n_expected if is_cut else n_tokens == n_expected
    return found if is_whole else None


def _first(
    some: Mapping[str, Any], name: str, others: Mapping[str, Any], other_name: str
) -> float | None:
    value = _number(some, name)
    return _number(others, other_name) if value is None else value


def _number(of: object, name: str) -> float | None:
    value = of.get(name) if isinstance(of, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        return None
    return float(value)
