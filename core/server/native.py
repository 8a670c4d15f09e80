"""llama.cpp's `/completion`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from msgspec import to_builtins
from starlette.requests import Request
from starlette.responses import Response

from ..worker.mailboxes import Progress
from .adapter_fields import scales_of_request
from .answer import Answer, timings_of
from .formats import Format, event, progress_object
from .generation_response import start
from .guard import owner_of
from .json_body import aside, read_object
from .parsed_request import ParsedRequest, parse_request
from .prompts import read_prompts_with_images
from .request_bodies import NativeBody
from .service import Service


async def completion(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, NativeBody)
    n_probs = body.logprobs if body.n_probs is None else body.n_probs
    owner = owner_of(request, body)

    def read() -> NativeFormat:
        prompts = read_prompts_with_images(body.prompt, service)
        parsed = parse_request(
            service, body, prompts, logprobs=n_probs or None, owner=owner,
            after_sampling=bool(body.post_sampling_probs),
        )  # fmt: skip
        return NativeFormat(parsed, service)

    return await start(service, await aside(body.size, read))


class NativeFormat(Format):
    def __init__(self, parsed: ParsedRequest, service: Service) -> None:
        super().__init__(parsed)
        self._service = service
        decode = partial(service.tokenizer.decode, show_special=True)
        self._prompts = [
            decode(prompt) if isinstance(prompt, list) else prompt.shown(decode)
            for prompt in parsed.prompts
        ]

    def piece(self, answer: Answer, text: str) -> bytes:
        return event(self._partial(answer, text))

    def progress(self, answer: Answer, progress: Progress) -> bytes:
        written = self._partial(answer, "") | {"prompt_progress": progress_object(progress)}
        if self.parsed.timings_each:
            n_read = progress.processed - progress.cached
            written["timings"] = timings_of(progress.cached, n_read, progress.ms)
        return event(written)

    def ending(self, answer: Answer) -> bytes:
        """The last event has the tokens that no earlier event had, such as the end token."""
        fresh = answer.fresh_tokens()
        final = self.final(answer) | {"content": "", "tokens": fresh}
        if self.parsed.with_sources:
            final |= answer.sources_of(fresh)
        if self.parsed.params.logprobs is not None:
            final["completion_probabilities"] = answer.fresh_logprobs()
        return event(select(final, self.parsed.only))

    def whole(self, answers: list[Answer]) -> Any:
        found = [select(self.final(answer), self.parsed.only) for answer in answers]
        return found[0] if len(found) == 1 else found

    def _partial(self, answer: Answer, text: str) -> dict[str, Any]:
        result: dict[str, Any] = {
            "index": answer.place,
            "content": text,
            "tokens": answer.fresh_tokens(),
            "stop": False,
            "id_slot": self._service.first_slot + answer.job.slot,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": len(answer.job.prompt),
        }
        if self.parsed.params.logprobs is not None:
            result["completion_probabilities"] = answer.fresh_logprobs()
        if self.parsed.with_sources:
            result |= answer.sources_of(result["tokens"])
        if self.parsed.timings_each:
            result["timings"] = answer.timings()
        return result

    def final(self, answer: Answer) -> dict[str, Any]:
        stats, text = answer.stats, answer.text
        result: dict[str, Any] = {
            "index": answer.place,
            "content": text,
            "tokens": answer.tokens if self.parsed.with_tokens else [],
            "id_slot": self._service.first_slot + answer.job.slot,
            "stop": True,
            "model": self._service.model_name,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": len(answer.job.prompt),
            "generation_settings": settings_of(self._service, self.parsed),
            "prompt": self._prompts[answer.place // self.parsed.n],
            "has_new_line": "\n" in text,
            "truncated": answer.is_truncated,
            "stop_type": answer.stop_type,
            "stopping_word": answer.stop_string,
            "tokens_cached": len(answer.job.prompt) + max(stats.predicted_n - 1, 0),
            "timings": answer.timings(),
            **self.warnings,
        }
        if self.parsed.params.logprobs is not None:
            result["completion_probabilities"] = answer.logprobs()
        if self.parsed.with_sources:
            result |= answer.sources_of(answer.tokens)
        return result


def select(result: dict[str, Any], only: tuple[str, ...]) -> dict[str, Any]:
    """Applies `response_fields`: `timings/predicted_n` is a field of an object, under that name."""
    if not only:
        return result
    found = {}
    for path in only:
        value: Any = result
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found


def settings_of(service: Service, parsed: ParsedRequest) -> dict[str, Any]:
    """Returns the settings of a request under llama.cpp's names."""
    params = parsed.params
    sampling: dict[str, Any] = to_builtins(params.sampling)
    banned = sorted(service.tokenizer.eog_ids) if params.ignore_eos else ()
    biases = (*params.sampling.logit_bias, *((token, -math.inf) for token in banned))
    sampling["logit_bias"] = [{"token": token, "bias": bias} for token, bias in biases]
    limit = -1 if params.max_tokens is None else params.max_tokens
    return sampling | {
        "n_predict": 0 if parsed.is_silent else limit,
        "max_tokens": 0 if parsed.is_silent else limit,
        "n_ctx": service.n_ctx,
        "n_keep": 0 if params.shift is None else params.shift.n_keep,
        "n_discard": 0 if params.shift is None else params.shift.n_discard,
        "n_probs": params.logprobs or 0,
        "ignore_eos": params.ignore_eos,
        "stop": list(params.stop),
        "stream": parsed.streams,
        "grammar": params.grammar or "",
        "timings_per_token": parsed.timings_each,
        "post_sampling_probs": params.after_sampling,
        "speculative.types": list(params.spec.types or service.runtime.spec_types),
        "speculative.n_max": params.spec.n_max,
        "speculative.n_min": params.spec.n_min,
        "speculative.p_min": params.spec.p_min,
        "lora": scales_of_request(params, service.runtime.model.adapters),
    }
