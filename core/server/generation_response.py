"""`GenerationResponse`: the response of a request for text, streamed or whole.

If the client disconnects, at any time from the first moment on, the jobs of the request are
cancelled and their slots are free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import ConfigError, NextnError, UnavailableError
from ..generation import CANCELLED, ERROR, NO_TOKEN, STOP, Event, GenerateParams
from ..worker.jobs import Job
from ..worker.mailboxes import Item, Mailbox, Ping, Progress
from .answer import Answer, counts_of
from .api_errors import ApiError, api_error
from .formats import Format, encode
from .request_images import encode_prompt_images
from .request_log import RECORD, note_error
from .service import Service

_MANY = 256
_STREAM_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


async def start(service: Service, form: Format) -> GenerationResponse:
    """Refused with an ApiError before anything is sent."""
    service.worker.check_room()
    parsed = form.parsed
    for i, prompt in enumerate(parsed.prompts):
        if not isinstance(prompt, list):
            parsed.encoded[i], parsed.image_ms[i] = await encode_prompt_images(service, prompt)
    jobs = parsed.jobs()
    await _prepare(service, jobs)
    parsed.warnings = _warnings(jobs)
    service.worker.submit(jobs)
    return GenerationResponse(service, jobs, form)


async def _prepare(service: Service, jobs: Sequence[Job]) -> None:
    """What takes long before the engine's thread can begin, which others are waiting for."""
    params = jobs[0].params
    is_slow = params.is_restricted
    is_slow |= params.sampling.dry_multiplier != 0 or len(params.sampling.logit_bias) > _MANY
    engine = service.loaded.engine
    for job in jobs:
        try:
            if is_slow:
                job.sampler = await asyncio.to_thread(engine.prepare, params, job.index)
            else:
                job.sampler = engine.prepare(params, job.index)
        except ConfigError as error:
            written = api_error(error)
            if params.is_restricted:
                written.param = _rule_of(params)
            raise written from None


def _warnings(jobs: Sequence[Job]) -> tuple[str, ...]:
    sampler = jobs[0].sampler
    if sampler is None or sampler.grammar is None:
        return ()
    return sampler.grammar.notes


def _rule_of(params: GenerateParams) -> str:
    """The field of a request that restricts its text."""
    if params.grammar is not None:
        return "grammar"
    return "json_schema" if params.json_schema is not None else "tools"


class GenerationResponse(Response):
    def __init__(self, service: Service, jobs: Sequence[Job], form: Format) -> None:
        self.service, self.jobs, self.form = service, jobs, form
        parsed = form.parsed
        drafts = bool(service.runtime.spec_types)
        self.answers = [
            Answer(job, service.tokenizer, is_silent=parsed.is_silent, has_drafters=drafts)
            for job in jobs
        ]
        self.mailbox: Mailbox = jobs[0].mailbox
        self.waits_since = 0.0  # for the client to read
        self.sent_at = time.perf_counter()
        self.has_begun = False  # its stream
        self.client: object = None
        self.model = service.model_name
        self.scope: Scope = {"path": ""}
        self._n_left = len(jobs)
        self._is_gone = False
        self.status_code, self.background = 200, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.client, self.scope = scope.get("client"), scope
        if RECORD in scope:
            scope[RECORD].counts = self._counts
        self.service.under_way.add(self)
        watch = asyncio.create_task(self._watch(receive))
        try:
            if self.form.parsed.streams:
                await self._stream(send)
            else:
                await self._answer_at_once(send)
        finally:
            watch.cancel()
            self.service.under_way.discard(self)
            if self._n_left:
                self.service.worker.cancel(self.jobs)

    def is_silent_since(self, moment: float) -> bool:
        """It is streaming, waits for the engine, and has sent nothing."""
        return self.has_begun and not self.waits_since and self.sent_at < moment

    def give_up(self, error: NextnError) -> None:
        """It ends with this, whatever the engine still does."""
        for answer in self.answers:
            if answer.stop_reason is None:
                event = Event(NO_TOKEN, "", stop_reason=ERROR, error=error)
                self.mailbox.put(answer.place, event)
                break
        self.mailbox.wake()

    def _counts(self) -> dict[str, Any]:
        """For the log of requests."""
        counts = {"model": self.model} | counts_of(self.answers)
        if warnings := self.form.parsed.warnings:
            counts["not_enforced"] = len(warnings)
        if tools := self.form.parsed.left_out:
            counts["left_out"] = len(tools)
        if self.service.settings.logs_texts and not self._n_left:
            counts["prompt_text"] = [each.prompt_text() for each in self.answers]
            counts["text"] = [each.text for each in self.answers]
        return counts

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._is_gone = True
        self.service.worker.cancel(self.jobs)

    async def _stream(self, send: Send) -> None:
        while self._n_left:
            items = await self.mailbox.take()
            if self._is_gone:
                return
            try:
                body = b"".join([self._encoded(place, item) for place, item in items])
            except ApiError as error:
                if not self.has_begun:
                    await send_error(error, self.scope, send)
                    return
                note_error(self.scope, error)
                body, self._n_left = self.form.failure(error), 0
                self.service.worker.cancel(self.jobs)
            else:
                if not self._n_left:
                    body += self.form.closing(self.answers)
            if not self.has_begun:
                headers = [(b"content-type", self.form.media_type), *_STREAM_HEADERS]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                self.has_begun = True
            self.waits_since = self.sent_at = time.perf_counter()
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self.waits_since = 0.0
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _encoded(self, place: int, item: Item) -> bytes:
        answer, form = self.answers[place], self.form
        if isinstance(item, Ping):
            return form.ping()
        if isinstance(item, Progress):
            return form.progress(answer, item)
        opening = b"" if answer.is_open else form.opening(answer)
        answer.is_open = True
        text = self._push(answer, item)
        written = form.piece(answer, text) if text else b""
        if item.stop_reason is not None:
            written += form.ending(answer)
        return opening + written

    def _push(self, answer: Answer, event: Event) -> str:
        text = answer.push(event)
        if event.stop_reason is not None:
            self._n_left -= 1
            if event.stop_reason in (ERROR, CANCELLED):
                raise api_error(event.error or UnavailableError("the request was cancelled"))
        elif text and self.form.is_complete(answer, text):
            self.service.worker.cancel([answer.job], STOP)
        return text

    async def _answer_at_once(self, send: Send) -> None:
        try:
            while self._n_left:
                for place, item in await self.mailbox.take():
                    if isinstance(item, Event):
                        self._push(self.answers[place], item)
        except ApiError as error:
            if not self._is_gone:
                await send_error(error, self.scope, send)
            return
        body = encode(self.form.whole(self.answers))
        await send_body(body, 200, {}, send)


async def send_error(error: ApiError, scope: Scope, send: Send) -> None:
    note_error(scope, error)
    await send_body(encode(error.body_for(scope["path"])), error.status, error.headers, send)


async def send_body(body: bytes, status: int, headers: dict[str, str], send: Send) -> None:
    header_lines = [
        (b"content-type", b"application/json; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in headers.items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": header_lines})
    await send({"type": "http.response.body", "body": body, "more_body": False})
