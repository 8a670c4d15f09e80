"""`ParsedRequest`: prompts and parameters of one request, and the form of its response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct, field

from ..generation import GenerateParams
from ..worker.jobs import NO_SLOT, Job
from ..worker.mailboxes import Mailbox
from .body_parts import MAX_TEXTS, StreamOptions, as_list
from .prompts import check_length
from .request_bodies import GenerationBody
from .request_decoding import refuse
from .sampling_fields import read_max_tokens, read_params
from .service import Service

if TYPE_CHECKING:
    from ..state.embedded_rows import ModelPrompt
    from ..vision.image_prompt import ImagePrompt


class ParsedRequest(Struct):
    prompts: Sequence[list[int] | ImagePrompt]
    params: GenerateParams
    n: int = 1  # sequences for each prompt
    model: str = ""
    streams: bool = False
    is_followed: bool = False  # its texts are read while they come, also without a stream
    is_silent: bool = False  # the prompt is read, and nothing written
    is_recorded: bool = False
    slot: int = NO_SLOT
    max_ms: float = 0.0
    reports: bool = False
    timings_each: bool = False
    with_usage: bool = True
    verbose: bool = False  # llama.cpp's own response beside OpenAI's
    with_tokens: bool = False
    with_sources: bool = False  # the drafter of each token
    warnings: tuple[str, ...] = ()  # set when the sampler is made
    left_out: tuple[str, ...] = ()  # a line on each kind of tool that nothing here runs
    only: tuple[str, ...] = ()  # fields of the response
    encoded: dict[int, ModelPrompt] = field(default_factory=dict)  # those with images, by place
    image_ms: dict[int, float] = field(default_factory=dict)  # what encoding them took

    def jobs(self) -> list[Job]:
        """After images are encoded."""
        mailbox = Mailbox()
        return [
            Job(
                self.encoded.get(i, cast("list[int]", prompt)),
                self.params,
                mailbox,
                place=i * self.n + index,
                index=index,
                wanted_slot=NO_SLOT if index else self.slot,
                max_ms=self.max_ms,
                reports=self.reports,
                is_followed=self.streams or self.is_followed,
                is_recorded=self.is_recorded,
                image_ms=self.image_ms.get(i, 0.0),
            )
            for i, prompt in enumerate(self.prompts)
            for index in range(self.n)
        ]


def parse_request(
    service: Service,
    body: GenerationBody,
    prompts: Sequence[list[int] | ImagePrompt],
    *,
    logprobs: int | None,
    after_sampling: bool = False,
    owner: str = "",
) -> ParsedRequest:
    """Reads what all endpoints have in common."""
    settings, n_slots = service.settings, service.worker.n_slots
    for prompt in prompts:
        check_length(prompt, service.n_ctx)
    n = body.n or body.n_cmpl or 1
    if n * len(prompts) > MAX_TEXTS:
        refuse("n", f"times the number of prompts may be at most {MAX_TEXTS}")
    stream_options = body.stream_options or StreamOptions()
    return ParsedRequest(
        prompts,
        read_params(
            body, service, logprobs=logprobs, after_sampling=after_sampling, owner=owner
        ),
        n=n,
        model=body.model or service.model_name,
        streams=bool(body.stream),
        is_silent=read_max_tokens(body, settings) == 0,
        is_recorded=settings.records_all if body.store is None else body.store,
        slot=_read_slot(body.id_slot, settings.replicas * n_slots, n_slots),
        max_ms=float(body.t_max_predict_ms or 0),
        reports=bool(body.return_progress),
        timings_each=bool(body.timings_per_token),
        with_usage=bool(stream_options.include_usage),
        verbose=settings.verbose if body.verbose is None else body.verbose,
        with_tokens=bool(body.return_tokens),
        with_sources=bool(body.return_sources),
        only=tuple(as_list(body.response_fields)),
    )  # fmt: skip


def _read_slot(slot: int | None, n_all: int, n_own: int) -> int:
    """The slot among those of this replica; `id_slot` counts those of all replicas."""
    if slot is None or slot == NO_SLOT:
        return NO_SLOT
    if slot >= n_all:
        refuse("id_slot", f"must be between {NO_SLOT} and {n_all - 1}, got {slot}")
    return slot % n_own
