"""`Asked`: what one request wants written, and how it wants to be told."""

from __future__ import annotations

from dataclasses import dataclass

from ..generation import GenerateParams
from .mailbox import Mailbox
from .prompts import check_length
from .request_bodies import MAX_TEXTS, GenerationBody, StreamOptions, as_list
from .request_decoding import refuse
from .sampling_fields import read_max_tokens, read_params
from .service import Service
from .work import NO_LANE, Work


@dataclass(slots=True)
class Asked:
    prompts: list[list[int]]
    params: GenerateParams
    n: int = 1  # texts for each prompt
    model: str = ""
    streams: bool = False
    is_silent: bool = False  # the prompt is to be read, and nothing to be written
    lane: int = NO_LANE
    max_ms: float = 0.0
    reports: bool = False
    timings_each: bool = False
    with_usage: bool = True
    with_tokens: bool = False
    with_sources: bool = False  # who drafted each token
    only: tuple[str, ...] = ()  # fields of the response

    def works(self) -> list[Work]:
        mailbox = Mailbox()
        return [
            Work(
                prompt,
                self.params,
                mailbox,
                place=i * self.n + index,
                index=index,
                wanted_lane=NO_LANE if index else self.lane,
                max_ms=self.max_ms,
                reports=self.reports,
                is_followed=self.streams,
            )
            for i, prompt in enumerate(self.prompts)
            for index in range(self.n)
        ]


def read_asked(
    service: Service,
    body: GenerationBody,
    prompts: list[list[int]],
    *,
    logprobs: int | None,
    after_sampling: bool = False,
    owner: str = "",
) -> Asked:
    """What every way of asking has in common."""
    settings, n_slots = service.settings, service.worker.n_slots
    for prompt in prompts:
        check_length(prompt, service.n_ctx)
    n = body.n or body.n_cmpl or 1
    if n > n_slots:
        refuse("n", f"must be between 1 and {n_slots}, got {n}")
    if n * len(prompts) > MAX_TEXTS:
        refuse("n", f"times the number of prompts may be at most {MAX_TEXTS}")
    stream_options = body.stream_options or StreamOptions()
    return Asked(
        prompts,
        read_params(
            body, settings, service.tokenizer, logprobs=logprobs,
            after_sampling=after_sampling, loaded_types=service.runtime.spec_types, owner=owner,
        ),
        n=n,
        model=body.model or service.model_name,
        streams=bool(body.stream),
        is_silent=read_max_tokens(body, settings) == 0,
        lane=_read_lane(body.id_slot, settings.replicas * n_slots, n_slots),
        max_ms=float(body.t_max_predict_ms or 0),
        reports=bool(body.return_progress),
        timings_each=bool(body.timings_per_token),
        with_usage=stream_options.include_usage is not False,
        with_tokens=bool(body.return_tokens),
        with_sources=bool(body.return_sources),
        only=tuple(as_list(body.response_fields)),
    )  # fmt: skip


def _read_lane(lane: int | None, n_all: int, n_own: int) -> int:
    """Of all replicas; which of them it is about was seen to before."""
    if lane is None or lane == NO_LANE:
        return NO_LANE
    if lane >= n_all:
        refuse("id_slot", f"must be between {NO_LANE} and {n_all - 1}, got {lane}")
    return lane % n_own
