"""`spec serve`: a model behind HTTP."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import typer
from msgspec.structs import replace

from .console import Console
from .conversation import read_switches, read_template
from .flags import given_flags, takes_flags
from .image_options import ProjectorOptions
from .log import show_log
from .open_model import choose_drafts, choose_model, print_choice
from .replicated import read_plan, serve_replicas
from .sampling_options import SamplingOptions
from .scale_options import ScaleOptions
from .serve_options import (
    CacheOptions,
    EmbeddingOptions,
    LimitOptions,
    ListenOptions,
    TemplateOptions,
    access_warnings,
    build_settings,
    open_listeners,
    share_context,
)
from .served_model import ServedModel
from .shared_options import ModelOptions, PlaceOptions, VoiceOptions
from .spec_options import ControlFlags, SpecFlags, build_spec, warning_of
from .usage import failure_line

if TYPE_CHECKING:
    from socket import socket

    from ..core.server.serving import Serving
    from ..core.server.settings import ServerSettings

_JOIN_S = 0.5  # for the engine's thread to end


@takes_flags
def serve(  # noqa: PLR0913 - groups of flags
    models: ModelOptions,
    projector: ProjectorOptions,
    place: PlaceOptions,
    listen: ListenOptions,
    limits: LimitOptions,
    cache: CacheOptions,
    templates: TemplateOptions,
    vectors: EmbeddingOptions,
    sampling: SamplingOptions,
    spec: SpecFlags,
    control: ControlFlags,
    scale: ScaleOptions,
    voice: VoiceOptions,
) -> None:
    """Answer requests over HTTP, as llama-server and OpenAI do.

    Sampling values come from the request, else from flags, else from what the model's file
    recommends, else from the defaults shown here. --parallel sequences share --ctx-size.
    """
    from ..core.model_names import is_bundled

    # Everything that can be wrong with the command line comes before anything slow.
    output = voice.console()
    show_log(output)
    speculation = build_spec(spec, control)
    plan = read_plan(scale, place)
    source = read_template(templates)
    switches = read_switches(templates)
    settings = build_settings(
        listen, limits, cache, templates, vectors, sampling, switches, verbose=voice.verbose
    )
    place = share_context(place, listen)
    model = choose_model(models, output, spec, with_mmproj=projector.is_looked_for)
    drafts = choose_drafts(spec, models, output)
    if is_bundled(model):
        settings = replace(settings, writes_text=True)
    for path in (model, *(drafts or ()), *([projector.mmproj] if projector.mmproj else ())):
        if not path.is_file():
            raise FileNotFoundError(2, "no such file", str(path))
    projector = projector.beside(model, output)
    if warning := warning_of(speculation):
        output.remark(warning)
    if cache.warning:
        output.remark(cache.warning)
    if speculation.corpus is not None and len(settings.api_keys) > 1:
        output.remark("--spec-corpus: what one API key's requests add is drafted for all keys")
    recipe = ServedModel(
        model, place, speculation, drafts, listen.parallel, cache.room, source,
        templates.chat_template, given_flags(), projector,
    )  # fmt: skip
    opened = open_listeners(listen, settings) if plan is None else None
    for line in access_warnings(settings):
        output.remark(line)
    print_choice(models, model, output)
    if plan is not None:
        serve_replicas(recipe, settings, listen, plan, output)
    elif opened is not None:
        serve_one(recipe, settings, opened, output)


def serve_one(
    recipe: ServedModel, settings: ServerSettings, opened: tuple[list[socket], str], output: Console
) -> NoReturn:
    """Answer on sockets; the address of the first is beside them."""
    from ..core.server.worker import Worker

    sockets, url = opened
    worker = Worker(
        lambda: recipe.load(output),
        max_queue=settings.max_queue,
        queue_s=settings.queue_s,
    )

    def ready() -> None:
        gc.enable()
        output.remark(f"ready      {url} ({worker.n_slots} slots)")

    output.note(f"loading    {recipe.model}")
    gc.disable()  # nothing of what is loaded and imported now will be garbage
    leave_at_signals()
    worker.begin()
    from ..core.server.serving import Serving  # takes a while, in which the model loads

    serving = Serving(worker, settings, sockets, ready)
    code = serving.run()
    finish(serving, code)


def finish(serving: Serving, code: int) -> NoReturn:
    """Print why the server ended, and exit with the right code."""
    from .console import print_error

    worker = serving.worker
    has_ended = worker.join(_JOIN_S)
    if worker.loaded is None and isinstance(worker.failure, Exception):
        raise worker.failure  # before it was ready: like any command that fails
    if worker.failure is not None:
        error = worker.failure
        line = failure_line(error) if isinstance(error, Exception) else type(error).__name__
        print_error(f"the engine has failed: {line}")
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
    """Exit without waiting for threads."""
    sys.stderr.flush()
    os._exit(code)
