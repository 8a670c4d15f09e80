"""`spec serve`: a model behind HTTP."""

from __future__ import annotations

import gc
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import typer

from ..core.errors import ConfigError
from ..core.tokenizer.chatml import CHATML
from .chat import read_switches
from .flags import takes_flags
from .loading import bundled_model, open_runtime
from .log import show_log
from .options import ModelOptions, PlaceOptions, VoiceOptions
from .output import Output
from .prompt import one_of
from .sampling_options import SamplingOptions
from .serve_options import (
    CacheOptions,
    LimitOptions,
    ListenOptions,
    TemplateOptions,
    build_settings,
)
from .spec_options import ControlFlags, SpecFlags, build_spec, warning_of, with_dashes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..core.runtime import Runtime
    from ..core.server.serving import Serving
    from ..core.server.worker import Loaded
    from ..core.speculation.options import SpecOptions
    from ..core.tokenizer import ChatTemplate

_JOIN_S = 0.5  # for the engine's thread to end


@takes_flags
def serve(  # noqa: PLR0913 - groups of flags
    models: ModelOptions,
    place: PlaceOptions,
    listen: ListenOptions,
    limits: LimitOptions,
    cache: CacheOptions,
    templates: TemplateOptions,
    sampling: SamplingOptions,
    spec: SpecFlags,
    control: ControlFlags,
    voice: VoiceOptions,
) -> None:
    """Answer requests over HTTP, as llama-server and OpenAI do.

    Sampling flags are for requests that say nothing. --ctx-size is of each text.
    """
    # Everything that can be wrong with the command line comes before anything slow.
    model = models.model or bundled_model()
    output = Output(quiet=voice.quiet, verbose=voice.verbose)
    show_log(output)
    speculation = build_spec(spec, control)
    source = one_of("chat-template", templates.chat_template, templates.chat_template_file)
    if templates.chat_template is not None:
        source = CHATML if templates.chat_template == "chatml" else None
    switches = read_switches(templates.chat_template_kwargs)
    settings = build_settings(listen, limits, cache, templates, sampling, switches)
    if models.model is None:
        settings = replace(settings, writes_text=True)
    for path in (model, spec.draft_model):
        if path is not None and not path.is_file():
            raise FileNotFoundError(2, "no such file", str(path))
    if warning := warning_of(speculation):
        output.remark(warning)
    if cache.warning:
        output.remark(cache.warning)
    from ..core.server.sockets import check_certificate, open_socket, url_of
    from ..core.server.worker import Worker

    if settings.ssl_cert is not None and settings.ssl_key is not None:
        check_certificate(settings.ssl_cert, settings.ssl_key)
    sock = open_socket(listen.host, listen.port)
    url = url_of(listen.host, sock.getsockname()[1], is_secure=settings.ssl_cert is not None)
    room = Room(listen.parallel, cache.room)
    load = loader(model, place, output, speculation, spec.draft_model, room)
    worker = Worker(
        lambda: load(lambda runtime: find_template(runtime, source, templates.chat_template)),
        max_queue=settings.max_queue,
        queue_s=settings.queue_s,
    )

    def ready() -> None:
        gc.enable()
        output.remark(f"ready      {url} ({worker.n_slots} slots)")

    output.note(f"loading    {model}")
    gc.disable()  # nothing of what is loaded and imported now will be garbage
    leave_at_signals()
    worker.begin()
    from ..core.server.serving import Serving  # takes a while, in which the model loads

    serving = Serving(worker, settings, sock, ready)
    code = serving.run()
    finish(serving, code)


class Room(NamedTuple):
    """What is asked for beside the model itself."""

    n_parallel: int
    cache_ram: int | None  # bytes


def loader(
    model: Path,
    place: PlaceOptions,
    output: Output,
    speculation: SpecOptions,
    draft: Path | None,
    room: Room,
) -> Callable[[Callable[[Runtime], ChatTemplate | None]], Loaded]:
    def load(template_of: Callable[[Runtime], ChatTemplate | None]) -> Loaded:
        from ..core.server.loading import prepare

        runtime = open_runtime(model, place, output, speculation, draft)
        try:
            return prepare(runtime, room.n_parallel, template_of(runtime), room.cache_ram)
        except ConfigError as error:  # memory, or what drafts: flags asked for it
            raise typer.BadParameter(with_dashes(str(error))) from None
        finally:
            output.clear_progress()

    return load


def find_template(runtime: Runtime, source: str | None, name: str | None) -> ChatTemplate | None:
    from ..core.tokenizer import ChatTemplate, load_chat_template

    if source is not None:
        return ChatTemplate(source)
    template = load_chat_template(runtime.file.metadata, name)
    if template is None and name is not None:
        raise typer.BadParameter(f"--chat-template: the model's file has none called {name!r}")
    return template


def finish(serving: Serving, code: int) -> None:
    """Why it ended, and with which exit code."""
    from .app import failure_line
    from .output import print_error

    worker = serving.worker
    has_ended = worker.join(_JOIN_S)
    if worker.loaded is None and isinstance(worker.failure, Exception):
        raise worker.failure  # before it ever served: like any command that fails
    if worker.failure is not None:
        error = worker.failure
        told = failure_line(error) if isinstance(error, Exception) else type(error).__name__
        print_error(f"the engine has failed: {told}")
    if serving.n_signals > 1:
        code = 130
    if worker.loaded is not None and has_ended:
        worker.loaded.runtime.close()
    if not has_ended:  # a thread in the middle of a load or of a long step cannot be stopped
        leave(code)
    raise typer.Exit(code)


def leave_at_signals() -> None:
    """Until they are the server's. Not by an exception: imports can lose one."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_, code=code: leave(code))


def leave(code: int) -> NoReturn:
    """Without waiting for threads."""
    sys.stderr.flush()
    os._exit(code)
