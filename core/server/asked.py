"""`Asked`: what one request wants written, and how it wants to be told."""

from __future__ import annotations

from dataclasses import dataclass

from ..generation import GenerateParams
from .fields import Fields
from .mailbox import Mailbox
from .prompts import check_length
from .sampling_fields import MAX_INT, read_max_tokens, read_params
from .service import Service
from .work import NO_LANE, Work

MAX_LOGPROBS = 100  # alternatives of a token
MAX_TEXTS = 128  # of one request


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
    fields: Fields,
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
    fields.integer("n_keep", 0, -1, MAX_INT)  # checked as in llama.cpp: contexts are not shifted
    fields.integer("n_discard", 0, 0, MAX_INT)
    n = fields.integer(fields.first("n", "n_cmpl"), 1, 1, n_slots)
    if n * len(prompts) > MAX_TEXTS:
        fields.refuse("n", f"times the number of prompts may be at most {MAX_TEXTS}")
    return Asked(
        prompts,
        read_params(
            fields, settings, service.tokenizer, logprobs=logprobs,
            after_sampling=after_sampling, loaded_types=service.runtime.spec_types, owner=owner,
        ),
        n=n,
        model=fields.text("model") or service.model_name,
        streams=fields.flag("stream"),
        is_silent=read_max_tokens(fields, settings) == 0,
        lane=_read_lane(fields, settings.replicas * n_slots, n_slots),
        max_ms=float(fields.integer("t_max_predict_ms", 0, -1, MAX_INT)),
        reports=fields.flag("return_progress"),
        timings_each=fields.flag("timings_per_token"),
        with_usage=fields.inner("stream_options").flag("include_usage", True),
        with_tokens=fields.flag("return_tokens"),
        with_sources=fields.flag("return_sources"),
        only=tuple(fields.texts("response_fields")),
    )  # fmt: skip


def _read_lane(fields: Fields, n_all: int, n_own: int) -> int:
    """Of all replicas; which of them it is about was seen to before."""
    lane = fields.integer("id_slot", NO_LANE, NO_LANE, n_all - 1)
    return lane if lane == NO_LANE else lane % n_own
