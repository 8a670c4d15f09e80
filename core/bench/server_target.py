"""A server as a `Target`: texts are streamed, timed here, and counted from its events."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from ..errors import NextnError
from .counters import Counters, added, counted, differences, fill_from_counters
from .dialects import CHAT, NATIVE, PATHS, Manner, Message, Task, read_event, request_body
from .receiving import Receiver
from .record import Configuration, Prompt, RunSettings, Sample
from .server_probe import OURS, MeasuredServer, counters_of
from .wire import ServerError, Wire

_SETTLE_S: Final = 2.0  # counters are brought up to date after the last event
_POLL_S: Final = 0.02


class StreamStopped(Exception):  # noqa: N818 - no error
    """The rest of a stream is not needed."""


class ServerTarget:
    """`extra` of the service's manners makes several configurations of one server."""

    def __init__(self, name: str, wire: Wire, service: MeasuredServer) -> None:
        self.name = name
        self.warnings: list[str] = []
        self._wire = wire
        self.service = service
        self._ours: dict[str, Any] = {}
        self._theirs: Counters | None = None
        self._is_comparable = service.has_counters
        self._drafts_are_theirs = False  # known from its counters alone
        self._stop = threading.Event()

    @property
    def place(self) -> str:
        return self._wire.address.shown

    def describe(self) -> dict[str, Any]:
        service = self.service
        details: dict[str, Any] = {
            "server": service.kind,
            "url": self.place,
            "model": service.model,
            "version": service.version,
            "api": service.manner.api,
            "slots": service.n_slots,
            "request": dict(service.manner.extra),
            **service.served,
        }
        if self._theirs is not None:
            details["counters"] = self._theirs.as_json()
            details["counted_here"] = self._ours
            details["counters_agree"] = not self.disagreements()
        return details

    @property
    def repeats(self) -> bool:
        """Whether what it drafts is known to repeat."""
        return False

    def configuration(self, baseline: object) -> Configuration:
        """Texts have to be those of the baseline only where one server of ours wrote both: other
        engines round otherwise."""
        is_same = (
            isinstance(baseline, ServerTarget)
            and self.service.kind == OURS
            and self.place == baseline.place
        )
        return Configuration(self.name, self.repeats, is_same, self.describe(), self.memory())

    def disagreements(self) -> list[str]:
        """Differences of its counters and its streams, since the first run."""
        if self._theirs is None:
            return []
        pairs = differences(self._ours, self._theirs)
        return [f"{what}: {our} here, {their} there" for what, our, their in pairs if our != their]

    def memory(self) -> dict[str, int]:
        size = self.service.served.get("size")
        return {"model": size} if isinstance(size, int) else {}

    def close(self) -> None:
        self._stop.set()

    def run(
        self, prompts: Sequence[Prompt], settings: RunSettings, concurrency: int = 1
    ) -> Iterator[Sample]:
        self._warn_of_slots(concurrency)
        before = self._counters()
        if before is not None and before.busy:
            self.warn(f"{before.busy} other requests were running on it: times include them")
        samples: list[Sample] = []
        try:
            for sample in self._written(prompts, settings, concurrency):
                sample.concurrency = concurrency
                samples.append(sample)
                yield sample
        finally:
            self._settle(before, samples, n_expected=sum(prompt.n_turns for prompt in prompts))

    def _written(
        self, prompts: Sequence[Prompt], settings: RunSettings, concurrency: int
    ) -> Iterator[Sample]:
        if concurrency == 1:
            for prompt in prompts:
                yield from self._turns(prompt, settings, self._stop, watches=True)
            return
        yield from self._together(prompts, settings, concurrency)

    def _together(
        self, prompts: Sequence[Prompt], settings: RunSettings, concurrency: int
    ) -> Iterator[Sample]:
        waiting: queue.SimpleQueue[Prompt] = queue.SimpleQueue()
        done: queue.SimpleQueue[Sample | BaseException | None] = queue.SimpleQueue()
        stop = threading.Event()
        for prompt in prompts:
            waiting.put(prompt)

        def work() -> None:
            try:
                while not stop.is_set():
                    for sample in self._turns(waiting.get_nowait(), settings, stop):
                        done.put(sample)
            except queue.Empty:
                done.put(None)
            except BaseException as error:  # noqa: BLE001 - raised again in the caller
                done.put(error)

        n_users = min(concurrency, len(prompts))
        users = [threading.Thread(target=work, daemon=True) for _ in range(n_users)]
        for user in users:
            user.start()
        try:
            while n_users:
                found = done.get()
                if isinstance(found, Sample):
                    yield found
                elif found is None:
                    n_users -= 1
                else:
                    raise found
        finally:
            stop.set()

    def _turns(
        self, prompt: Prompt, settings: RunSettings, stop: threading.Event, *, watches: bool = False
    ) -> Iterator[Sample]:
        """All turns of a prompt; a failed one is the last."""
        messages: list[Message] = []
        salt = uuid.uuid4().hex
        if prompt.system:
            messages.append({"role": "system", "content": prompt.system})
        for turn in range(prompt.n_turns):
            sample = Sample(self.name, prompt.id, prompt.category, turn=turn)
            if prompt.turns:
                messages.append({"role": "user", "content": prompt.turns[turn]})
            n = settings.max_tokens or prompt.max_tokens
            try:
                manner, task = self._task(prompt, messages, settings, n)
                self._write(manner, replace(task, salt=salt), sample, stop, watches=watches)
            except StreamStopped:
                return
            except NextnError as error:
                sample.error = str(error)
            yield sample
            if sample.error:
                return
            messages.append({"role": "assistant", "content": sample.text or ""})

    def _task(
        self, prompt: Prompt, messages: Sequence[Message], settings: RunSettings, n: int
    ) -> tuple[Manner, Task]:
        service = self.service
        if not prompt.turns:
            if service.manner.api == CHAT:
                messages = [{"role": "user", "content": prompt.text}]
                return service.manner, Task(n, settings, messages=messages)
            return service.manner, Task(n, settings, prompt.text)
        if service.chat is not None and service.chat.api == CHAT:
            return service.chat, Task(n, settings, messages=list(messages))
        return service.manner, Task(n, settings, self._templated(messages))

    def _templated(self, messages: Sequence[Message]) -> str:
        path = "/apply-template"
        answer = self._wire.post(path, {"messages": list(messages)})
        found = answer.json() if answer.status == 200 else None
        text = found.get("prompt") if isinstance(found, dict) else None
        if not isinstance(text, str):
            if self.service.manner.api != NATIVE and answer.status in (404, 405):
                raise ServerError(
                    f"{self._wire.address.shown}: has no {path}, which turns need with this --api; "
                    f"--api chat leaves the template to it"
                )
            raise self._wire.refused(path, answer)
        return text

    def _write(
        self, manner: Manner, task: Task, sample: Sample, stop: threading.Event, *, watches: bool
    ) -> None:
        receiver = Receiver()
        before = self._counters() if watches else None
        arrivals = self._wire.stream(PATHS[manner.api], request_body(manner, task))
        started_at = next(arrivals).at
        at = started_at
        for arrival in arrivals:
            if stop.is_set() or self._stop.is_set():
                raise StreamStopped
            at = arrival.at
            events = [event for text in arrival.events if (event := read_event(text)) is not None]
            receiver.take(1000 * (at - started_at), events)
        if not receiver.ending and not receiver.text:
            raise ServerError(f"{self._wire.address.shown}: the stream ended without a text")
        sample.total_ms = 1000 * (at - started_at)
        receiver.fill(sample)
        if before is not None and sample.drafts is None:
            fill_from_counters(sample, self._settled_since(before, [sample]))
            self._drafts_are_theirs = True

    def _counters(self) -> Counters | None:
        return counters_of(self._wire, self.service.model) if self._is_comparable else None

    def _settled_since(self, before: Counters, samples: Sequence[Sample]) -> Counters | None:
        """Once nothing is running there and it has counted what came here."""
        expected = sum(sample.predicted_n for sample in samples)
        deadline = time.monotonic() + _SETTLE_S
        found = None
        while True:
            now = self._counters()
            found = None if now is None else now.since(before)
            is_there = found is not None and not found.busy
            if found is None or (is_there and (found.predicted or 0) >= expected):
                return found
            if time.monotonic() > deadline:
                return found
            time.sleep(_POLL_S)

    def _settle(self, before: Counters | None, samples: Sequence[Sample], n_expected: int) -> None:
        """Its counters of this run beside ours."""
        if before is None:
            return
        if len(samples) < n_expected or any(sample.error for sample in samples):
            # It began requests whose end was not seen.
            self._is_comparable, self._theirs = False, None
            return
        found = self._settled_since(before, samples)
        if found is None:
            self.warn("it was restarted, or its counters vanished, during the run")
            return
        self._theirs = found if self._theirs is None else found.plus(self._theirs)
        ours = counted(samples, found.counts_cached, with_drafts=not self._drafts_are_theirs)
        self._ours = added(self._ours, ours)

    def _warn_of_slots(self, concurrency: int) -> None:
        slots = self.service.n_slots
        if slots is not None and slots < concurrency:
            self.warn(f"it has {slots} slots: of {concurrency} requests, some wait for others")

    def warn(self, line: str) -> None:
        if line not in self.warnings:
            self.warnings.append(line)


def split_extra(service: MeasuredServer, extra: Mapping[str, Any]) -> MeasuredServer:
    """The same server, with more in the body of requests."""
    chat = service.chat and replace(service.chat, extra={**service.chat.extra, **extra})
    manner = replace(service.manner, extra={**service.manner.extra, **extra})
    return replace(service, manner=manner, chat=chat)
