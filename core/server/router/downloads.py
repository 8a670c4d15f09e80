"""`Downloads`: models that a running server fetches from the Hugging Face hub, each in a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ...errors import NextnError
from ...gguf.printable import printable
from ...hub.cached_models import remove_begun
from ...hub.hub_cache import HubFile, check_room
from ...hub.hub_models import FoundModel, HubModel, download, look_up, parse_hub_name
from ..api_errors import ApiError
from .model_events import ModelEvents

DOWNLOADING: Final = "downloading"
CANCELLED: Final = "the download was cancelled"
LOOK_S: Final = 0.25  # between two looks at how far a download is
_MOST: Final = 4  # at once
_log: Final = logging.getLogger(__name__)


class HubAccess(Struct, frozen=True):
    """What requests may do to the hub's cache, and how models are downloaded."""

    refusal: str = ""  # why they may not change it; empty: they may
    pattern: HubModel = HubModel("")  # token, network, files beside a model

    @property
    def is_used(self) -> bool:
        """Whether the hub is asked at all."""
        from huggingface_hub import constants

        return not (self.refusal or self.pattern.offline or constants.HF_HUB_OFFLINE)

    def check(self) -> None:
        if self.refusal:
            raise ApiError(403, self.refusal)

    def wanted(self, name: str) -> HubModel:
        repo, quant = parse_hub_name(name)
        return replace(self.pattern, repo=repo, quant=quant)


def _look_up(wanted: HubModel) -> FoundModel:
    found = look_up(wanted)
    try:
        check_room(found.first_files)
    except OSError as error:
        raise NextnError(_line_of(error)) from None
    return found


def _line_of(error: OSError) -> str:
    where = f"{printable(error.filename)}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


class _StoppedError(NextnError):
    """A download was cancelled."""


class FileProgress(Struct):
    file: HubFile
    done: int = 0


class Download:
    """One that is under way. Its thread writes how far it is, the loop reads that."""

    def __init__(self, name: str, found: FoundModel) -> None:
        self.name, self.found = name, found
        self.files = {file.name: FileProgress(file) for file in found.first_files}
        self.failure = ""  # a line
        self.has_ended, self._is_over = asyncio.Event(), asyncio.Event()
        self.is_cancelled = False
        self.n_clients = 0  # that wait for it
        self.is_kept = False  # also without one

    def cancel(self) -> None:
        self.is_cancelled = True
        self._is_over.set()

    async def wait_a_little(self) -> None:
        """Less if it is cancelled."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._is_over.wait(), LOOK_S)

    def run(self, note: Callable[[str], None]) -> None:
        """In its thread."""
        try:
            download(self.found, note, self._report)
        except _StoppedError:
            self.failure = CANCELLED
        except NextnError as error:
            self.failure = str(error)
        except OSError as error:  # a full disk
            self.failure = _line_of(error)
        except Exception as error:  # noqa: BLE001 - the server goes on
            self.failure = f"internal error: {error!r:.200}"

    def progress(self, endpoint: str) -> dict[str, Any]:
        """As llama-server shows it: by address."""
        return {
            each.file.url(endpoint): {"done": each.done, "total": each.file.size}
            for each in list(self.files.values())
        }

    def _report(self, file: HubFile, n: int) -> None:
        if self.is_cancelled:
            raise _StoppedError(self.name)
        self.files.setdefault(file.name, FileProgress(file)).done = n


class Downloads:
    """All methods run in the loop."""

    def __init__(
        self, access: HubAccess, events: ModelEvents, on_new: Callable[[], Awaitable[object]],
        note: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`on_new`: called when there is a new model, before an event says so."""
        self.access, self._events, self._on_new, self._note = access, events, on_new, note
        self.running: dict[str, Download] = {}
        self._threads: set[threading.Thread] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, name: str) -> Download:
        """Asks the hub, and begins if it has the model. One that runs already is joined."""
        self.access.check()
        found = await asyncio.to_thread(_look_up, self.access.wanted(name))
        if (known := self.running.get(name)) is not None:
            return known
        if len(self.running) >= _MOST:
            raise ApiError(503, f"{_MOST} models are being downloaded already", retry_after=60)
        each = self.running[name] = Download(name, found)
        task = asyncio.create_task(self._run(each))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return each

    async def cancel(self, name: str) -> bool:
        """Returns whether it was under way. What came stays, and a later one goes on from there."""
        found = self.running.get(name)
        if found is None:
            return False
        found.cancel()
        await found.has_ended.wait()
        return True

    async def remove(self, each: Download) -> None:
        """Cancels it, and removes what came."""
        each.cancel()
        await each.has_ended.wait()
        await asyncio.to_thread(remove_begun, [each.file for each in each.files.values()])

    def end(self) -> None:
        for each in self.running.values():
            each.cancel()

    @property
    def have_ended(self) -> bool:
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        return not self._threads

    def progress(self, each: Download) -> dict[str, Any]:
        from huggingface_hub import constants

        return each.progress(constants.ENDPOINT)

    async def _run(self, each: Download) -> None:
        thread = threading.Thread(target=each.run, args=(self._note,), daemon=True)
        self._threads.add(thread)
        thread.start()
        self._events.send(each.name, "model_status", {"status": DOWNLOADING})
        sent: dict[str, Any] = {}
        while True:
            has_ended = not thread.is_alive()
            if (progress := self.progress(each)) != sent:
                self._events.send(each.name, "download_progress", progress)
                sent = progress
            if has_ended or each.is_cancelled:  # its thread may wait for the hub for long
                break
            await each.wait_a_little()
        if not has_ended:
            each.failure = each.failure or CANCELLED
        await self._finish(each)

    async def _finish(self, each: Download) -> None:
        if not each.failure:
            self._note(f"downloaded {each.name}")
            try:
                await self._on_new()
            except (NextnError, OSError) as error:  # of a preset that has changed
                _log.error("the list of models cannot be read again: %s", error)
        elif not each.is_cancelled:
            _log.error("the model %s cannot be downloaded: %s", each.name, each.failure)
        del self.running[each.name]
        each.has_ended.set()
        if each.failure:
            self._events.send(each.name, "download_failed", {"error": each.failure})
        else:
            self._events.send(each.name, "download_finished", {})
