"""`Answer`: one text as it comes, for any response format."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from ..backend.step import FIRST_ROW_ID
from ..errors import NextnError
from ..generation import CONTEXT, EOS, LIMIT, NO_TOKEN, STOP, Event, Stats, rate
from ..state.embedded_rows import ModelPrompt
from ..tokenizer import Tokenizer
from ..worker.jobs import Job

_LEAST: Final = -9999.0  # log-probability of what cannot be: JSON has no infinity
_STOP_TYPES: Final = {EOS: "eos", STOP: "word", LIMIT: "limit", CONTEXT: "limit"}


class Answer:
    def __init__(
        self,
        job: Job,
        tokenizer: Tokenizer,
        *,
        is_silent: bool = False,
        has_drafters: bool = True,
    ) -> None:
        self.job = job
        self.text_parts: list[str] = []
        self.tokens: list[int] = []  # the one that ended the text included
        self.sources: list[str] = []  # the drafter of each of them, or `target`
        self.events: list[Event] = []  # those with log-probabilities
        self.rejected: list[list[str]] = []  # what was drafted in their place, if requested
        self.stop_reason: str | None = None
        self.stop_string = ""
        self.error: NextnError | None = None
        self.is_open = False  # its `opening` has been sent
        self._tokenizer, self._is_silent = tokenizer, is_silent
        self._has_drafters = has_drafters
        self._with_logprobs = job.params.logprobs is not None
        self._with_rejected = job.params.with_rejected
        # Not yet sent: what waits for the rest of a character or of a stop string, and came since.
        self._n_sent = self._n_events_sent = 0

    @property
    def place(self) -> int:
        return self.job.place

    @property
    def stats(self) -> Stats:
        return self.job.stats

    @property
    def text(self) -> str:
        return "".join(self.text_parts)

    @property
    def is_truncated(self) -> bool:
        sequence = self.job.sequence
        return self.stop_reason == CONTEXT or (sequence is not None and sequence.n_dropped > 0)

    @property
    def is_cut(self) -> bool:
        """Whether the model would have gone on."""
        return self.stop_reason not in (EOS, STOP)

    @property
    def stop_type(self) -> str:
        """In llama.cpp's words."""
        return _STOP_TYPES.get(self.stop_reason or "", "none")

    def push(self, event: Event) -> str:
        """Text to be shown now."""
        if event.stop_reason is not None:
            self.stop_reason, self.error = event.stop_reason, event.error
            self.stop_string = event.stop_string or ""
        if self._is_silent:
            return ""
        if event.token != NO_TOKEN:
            self.tokens.append(event.token)
            self.sources.append(event.source)
            if self._with_logprobs and event.stop_reason != EOS:
                self.events.append(event)
            if self._with_rejected:
                self.rejected.append([self._piece(token) for token in event.rejected])
        if event.text:
            self.text_parts.append(event.text)
        return event.text

    def prompt_text(self) -> str:
        """Of the tokens that the model read, without rows of images."""
        tokens = [token for token in self.job.prompt[:] if token < FIRST_ROW_ID]
        pieces = [self._tokenizer.piece(token, show_special=True) for token in tokens]
        return b"".join(pieces).decode("utf-8", "replace")

    def fresh_tokens(self) -> list[int]:
        """Since the last call."""
        fresh, self._n_sent = self.tokens[self._n_sent :], len(self.tokens)
        return fresh

    def fresh_logprobs(self) -> list[dict[str, Any]]:
        fresh, self._n_events_sent = self.events[self._n_events_sent :], len(self.events)
        return [self.logprobs_of(event) for event in fresh]

    def sources_of(self, tokens: list[int]) -> dict[str, Any]:
        """The drafters of the last tokens, and what was drafted in the place of each."""
        first = len(self.tokens) - len(tokens)
        return {"sources": self.sources[first:], "rejected": self.rejected[first:]}

    def _piece(self, token: int) -> str:
        return self._tokenizer.piece(token, show_special=True).decode("utf-8", "replace")

    def logprobs(self) -> list[dict[str, Any]]:
        return [self.logprobs_of(event) for event in self.events]

    def logprobs_of(self, event: Event) -> dict[str, Any]:
        best = [self._logprob(token, value) for token, value in event.top_logprobs]
        name = "top_probs" if self.job.params.after_sampling else "top_logprobs"
        return self._logprob(event.token, event.logprob or 0.0) | {name: best}

    def _logprob(self, token: int, value: float) -> dict[str, Any]:
        """Under llama.cpp's names; values behind the samplers are probabilities."""
        piece = self._tokenizer.piece(token, show_special=True)
        entry: dict[str, Any] = {
            "id": token, "token": piece.decode("utf-8", "replace"), "bytes": list(piece)
        }  # fmt: skip
        if self.job.params.after_sampling:
            return entry | {"prob": math.exp(value)}
        return entry | {"logprob": max(value, _LEAST)}

    def timings(self) -> dict[str, Any]:
        """Under llama.cpp's names."""
        stats = self.stats
        n_read = stats.prompt_n - stats.cached_n
        found = timings_of(
            stats.cached_n, n_read, stats.prompt_ms, len(self.tokens), stats.predicted_ms
        )
        if self._has_drafters:
            found["draft_n"] = stats.draft_n
            found["draft_n_accepted"] = stats.draft_n_accepted
        prompt = self.job.prompt
        if isinstance(prompt, ModelPrompt) and prompt.runs:
            found["image_n"], found["image_ms"] = prompt.n_rows, self.job.image_ms
        return found

    def usage(self) -> dict[str, Any]:
        """Under OpenAI's names."""
        stats, n = self.stats, len(self.tokens)
        return {
            "prompt_tokens": len(self.job.prompt),
            "completion_tokens": n,
            "total_tokens": len(self.job.prompt) + n,
            "prompt_tokens_details": {"cached_tokens": stats.cached_n},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": stats.draft_n_accepted,
                "rejected_prediction_tokens": stats.draft_n - stats.draft_n_accepted,
            },
        }


def timings_of(
    cached_n: int, prompt_n: int, prompt_ms: float, predicted_n: int = 0, predicted_ms: float = 0.0
) -> dict[str, Any]:
    """Under llama.cpp's names."""
    n_steps = max(predicted_n - 1, 0)  # the first token comes with the prompt
    return {
        "cache_n": cached_n,
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / prompt_n if prompt_n else 0.0,
        "prompt_per_second": rate(prompt_n, prompt_ms),
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / n_steps if n_steps else 0.0,
        "predicted_per_second": rate(n_steps, predicted_ms),
    }


def total_usage(answers: list[Answer]) -> dict[str, Any]:
    """Of all texts of a request; a prompt of several texts counts once."""
    if len(answers) == 1:
        return answers[0].usage()
    prompts = [answer.usage() for answer in answers if answer.job.index == 0]
    total: dict[str, Any] = {}
    for usage in prompts:
        _add(total, {name: usage[name] for name in ("prompt_tokens", "prompt_tokens_details")})
    for answer in answers:
        usage = answer.usage()
        names = ("completion_tokens", "completion_tokens_details")
        _add(total, {name: usage[name] for name in names})
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    return total


def _add(total: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _add(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value


def counts_of(answers: list[Answer]) -> dict[str, Any]:
    """Of all texts of a request, for the log; as they were when the last event came."""
    usage = total_usage(answers)
    drafts = usage["completion_tokens_details"]
    firsts = [each.job.first_at - each.job.submitted_at for each in answers if each.job.first_at]
    written_ms = max(each.stats.predicted_ms for each in answers)
    reasons = dict.fromkeys(each.stop_reason for each in answers if each.stop_reason)
    return {
        "prompt": usage["prompt_tokens"],
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
        "new": usage["completion_tokens"],
        "first_s": round(min(firsts), 4) if firsts else None,
        "per_s": round(rate(sum(max(len(each.tokens) - 1, 0) for each in answers), written_ms), 1),
        "drafted": drafts["accepted_prediction_tokens"] + drafts["rejected_prediction_tokens"],
        "accepted": drafts["accepted_prediction_tokens"],
        "end": ",".join(reasons),
    }


def now() -> int:
    return int(time.time())
