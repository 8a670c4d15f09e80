"""llama.cpp's `/completion`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .answer import Answer
from .asked import Asked, read_asked
from .formats import Format, event, progress_object
from .generation import start
from .guard import owner_of
from .json_body import aside, read_object
from .mailbox import Progress
from .prompts import read_prompts
from .request_bodies import NativeBody
from .service import Service


async def completion(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, NativeBody)
    n_probs = body.logprobs if body.n_probs is None else body.n_probs
    owner = owner_of(request, body)

    def read() -> NativeFormat:
        prompts = read_prompts(body.prompt, service.tokenizer, service.n_ctx)
        asked = read_asked(
            service, body, prompts, logprobs=n_probs or None, owner=owner,
            after_sampling=bool(body.post_sampling_probs),
        )  # fmt: skip
        return NativeFormat(asked, service)

    return await start(service, await aside(body.size, read))


class NativeFormat(Format):
    def __init__(self, asked: Asked, service: Service) -> None:
        super().__init__(asked)
        self._service = service
        decode = service.tokenizer.decode
        self._prompts = [decode(prompt, show_special=True) for prompt in asked.prompts]

    def piece(self, answer: Answer, text: str) -> bytes:
        return event(self._partial(answer, text))

    def progress(self, answer: Answer, progress: Progress) -> bytes:
        return event(self._partial(answer, "") | {"prompt_progress": progress_object(progress)})

    def ending(self, answer: Answer) -> bytes:
        """The last event has the tokens that no earlier event had, such as the end token."""
        fresh = answer.fresh_tokens()
        final = self.final(answer) | {"content": "", "tokens": fresh}
        if self.asked.with_sources:
            final |= answer.sources_of(fresh)
        if self.asked.params.logprobs is not None:
            final["completion_probabilities"] = answer.fresh_logprobs()
        return event(select(final, self.asked.only))

    def whole(self, answers: list[Answer]) -> Any:
        found = [select(self.final(answer), self.asked.only) for answer in answers]
        return found[0] if len(found) == 1 else found

    def _partial(self, answer: Answer, text: str) -> dict[str, Any]:
        told: dict[str, Any] = {
            "index": answer.place,
            "content": text,
            "tokens": answer.fresh_tokens(),
            "stop": False,
            "id_slot": self._service.first_slot + answer.work.lane,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": len(answer.work.prompt),
        }
        if self.asked.params.logprobs is not None:
            told["completion_probabilities"] = answer.fresh_logprobs()
        if self.asked.with_sources:
            told |= answer.sources_of(told["tokens"])
        if self.asked.timings_each:
            told["timings"] = answer.timings()
        return told

    def final(self, answer: Answer) -> dict[str, Any]:
        stats, text = answer.stats, answer.text
        told: dict[str, Any] = {
            "index": answer.place,
            "content": text,
            "tokens": answer.tokens if self.asked.with_tokens else [],
            "id_slot": self._service.first_slot + answer.work.lane,
            "stop": True,
            "model": self._service.model_name,
            "tokens_predicted": len(answer.tokens),
            "tokens_evaluated": len(answer.work.prompt),
            "generation_settings": settings_of(self._service, self.asked),
            "prompt": self._prompts[answer.place // self.asked.n],
            "has_new_line": "\n" in text,
            "truncated": answer.is_truncated,
            "stop_type": answer.stop_type,
            "stopping_word": answer.stop_string,
            "tokens_cached": len(answer.work.prompt) + max(stats.predicted_n - 1, 0),
            "timings": answer.timings(),
        }
        if self.asked.params.logprobs is not None:
            told["completion_probabilities"] = answer.logprobs()
        if self.asked.with_sources:
            told |= answer.sources_of(answer.tokens)
        return told


def select(told: dict[str, Any], only: tuple[str, ...]) -> dict[str, Any]:
    """Applies `response_fields`: `timings/predicted_n` takes one field out of its object."""
    if not only:
        return told
    found = {}
    for path in only:
        value: Any = told
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path.rpartition("/")[2]] = value
    return found


def settings_of(service: Service, asked: Asked) -> dict[str, Any]:
    """Returns the settings of a request under llama.cpp's names."""
    params = asked.params
    sampling = asdict(params.sampling)
    sampling["logit_bias"] = [
        {"token": token, "bias": bias} for token, bias in params.sampling.logit_bias
    ]
    limit = -1 if params.max_tokens is None else params.max_tokens
    return sampling | {
        "n_predict": 0 if asked.is_silent else limit,
        "max_tokens": 0 if asked.is_silent else limit,
        "n_ctx": service.n_ctx,
        "n_keep": 0,
        "n_discard": 0,
        "n_probs": params.logprobs or 0,
        "ignore_eos": params.ignore_eos,
        "stop": list(params.stop),
        "stream": asked.streams,
        "grammar": params.grammar or "",
        "timings_per_token": asked.timings_each,
        "post_sampling_probs": params.after_sampling,
        "speculative.types": list(params.spec.types or service.runtime.spec_types),
        "speculative.n_max": params.spec.n_max,
        "speculative.n_min": params.spec.n_min,
        "speculative.p_min": params.spec.p_min,
        "lora": [],
    }
