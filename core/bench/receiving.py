"""The events of one request, as they come in, to one sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..generation import TARGET
from .dialects import EOS, STOP, ServerEvent
from .record import Chunk, Sample


class TokenCounters(NamedTuple):
    """The server's totals in the event of a token."""

    predicted_n: int
    predicted_ms: float
    drafted: int
    accepted: int


class StreamRound(NamedTuple):
    n: int  # tokens
    drafted: int
    accepted: int
    ms: float  # when its first token came


class Receiver:
    """Tokens of one pass of the server's model come in events of their own, with a common time
    stamp in `timings`; without it, what one read of the connection brought counts as one pass."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.tokens: list[int] = []
        self.ending = ""
        self.timings: Mapping[str, Any] = {}
        self.usage: Mapping[str, Any] = {}
        self._sources: list[tuple[str, int, float]] = []  # of tokens: source, rejected, ms
        self._chunks: list[Chunk] = []
        self._counters: list[TokenCounters] = []
        self._counted = 0  # tokens, as the server counts
        self._last_stamp: float | None = None  # its clock at the last event
        self._n_unknown = 0  # events that held text and no count

    def take(self, ms: float, events: list[ServerEvent]) -> None:
        """Take what one read brought."""
        has_token = False
        for event in events:
            has_token |= self._take(ms, event, is_first=not has_token)

    def _take(self, ms: float, event: ServerEvent, *, is_first: bool) -> bool:
        """True if it holds a token. `is_first`: none was before it in this read."""
        self.ending = event.ending or self.ending
        self.timings = event.timings or self.timings
        self.usage = event.usage or self.usage
        n = self._n_of(event)
        self._note(event)
        self._sources += [(source, n_rejected, ms) for source, n_rejected in event.sources]
        if not n and not event.text:
            return False
        self.text.append(event.text)
        self.tokens += event.tokens
        stamp = _number(event.timings, "predicted_ms")
        is_same_pass = stamp is not None and stamp == self._last_stamp
        follows = is_same_pass if stamp is not None else not is_first
        self._last_stamp = stamp
        if self._chunks and follows:
            n += self._chunks.pop().n
        self._chunks.append(Chunk(ms, n))
        self._n_unknown += 1 if not n else 0
        return True

    def _n_of(self, event: ServerEvent) -> int:
        """Ids are the last resort of three: a token that ends within a character has no event."""
        counted = _number(event.timings, "predicted_n")
        if counted is None:
            counted = _number(event.usage, "completion_tokens")
        if counted is None:
            return len(event.tokens)
        n = max(0, round(counted) - self._counted)
        self._counted = max(self._counted, round(counted))
        # A count with the last event alone is that of the whole text, not of the event.
        return n if (event.text or event.tokens) and not self._n_unknown else 0

    def _note(self, event: ServerEvent) -> None:
        n, ms = _number(event.timings, "predicted_n"), _number(event.timings, "predicted_ms")
        if event.timings is not None and n is not None and ms is not None and n > 0:
            drafted = _number(event.timings, "draft_n") or 0
            accepted = _number(event.timings, "draft_n_accepted") or 0
            self._counters.append(TokenCounters(round(n), ms, round(drafted), round(accepted)))

    def fill(self, sample: Sample) -> None:
        """Everything that is known once the stream has ended."""
        sample.text = "".join(self.text)
        sample.stop_reason = self.ending
        self._fill_counts(sample)
        sample.chunks = self._shared_out(sample.predicted_n)
        if self.tokens and len(self.tokens) == sample.predicted_n:
            sample.tokens = self.tokens
        if not self._fill_from_sources(sample) and sample.draft_n is not None:
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
        if _number(self.timings, "predicted_n") is not None:  # no field if nothing was drafted
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

    def _fill_from_sources(self, sample: Sample) -> bool:
        """True if the sources of all tokens are known and add up."""
        rounds = rounds_of(self._sources)
        drafted, accepted = sum(r.drafted for r in rounds), sum(r.accepted for r in rounds)
        found = sum(r.n for r in rounds), drafted, accepted
        if not rounds or found != (sample.predicted_n, sample.draft_n, sample.draft_n_accepted):
            return False
        sample.chunks = [Chunk(r.ms, r.n) for r in rounds]
        sample.rounds = len(rounds) - 1
        _fill_places(sample, [(r.drafted, r.accepted) for r in rounds])
        return True

    def _fill_rounds(self, sample: Sample) -> None:
        """Each pass after the first token gave what was accepted, and one token more."""
        drafted, accepted = sample.draft_n or 0, sample.draft_n_accepted or 0
        is_cut = self.ending in (EOS, STOP)  # accepted, perhaps, and not shown
        if not is_cut:
            sample.rounds = max(0, sample.predicted_n - 1 - accepted)
        if not drafted:
            _fill_places(sample, [])
            return
        rounds = passes(self._counters, is_cut=is_cut)
        if rounds is None or sum(n for n, _ in rounds) != drafted:
            return
        sample.rounds = len(rounds)
        _fill_places(sample, rounds)


def rounds_of(tokens: Sequence[tuple[str, int, float]]) -> list[StreamRound]:
    """From `sources` of our server: the drafter of each token, how many draft tokens for its place
    and those behind it were rejected, and the ms at which it came. The first round is the one that
    finished the prompt. (The server's own counts are those of the moment in which an event is
    written, which may be later than the round of the event.)"""
    found, first = list[StreamRound](), 0
    for i, (source, n_rejected, _) in enumerate(tokens):
        if source == TARGET or i + 1 == len(tokens):
            accepted = i - first + (source != TARGET)
            ms = tokens[first][2]
            found.append(StreamRound(i + 1 - first, accepted + n_rejected, accepted, ms))
            first = i + 1
    return found


def _fill_places(sample: Sample, rounds: Sequence[tuple[int, int]]) -> None:
    """Of (drafted, accepted): how many had a draft, tokens drafted and accepted by place."""
    drafts = [(n, k) for n, k in rounds if n]
    places = range(max((n for n, _ in drafts), default=0))
    sample.drafts = len(drafts)
    sample.drafted_per_pos = [sum(n > i for n, _ in drafts) for i in places]
    sample.accepted_per_pos = [sum(k > i for _, k in drafts) for i in places]


def passes(counters: list[TokenCounters], *, is_cut: bool) -> list[tuple[int, int]] | None:
    """(drafted, accepted) of each pass after the first token; None where two passes came as one,
    because the tokens of the first ended within a character."""
    if not counters or counters[0].predicted_n != 1:
        return None
    found = []
    before = counters[0]
    latest = before
    for now in counters[1:]:
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
