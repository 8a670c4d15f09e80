"""`spec serve`: a model behind HTTP."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, NoReturn

import typer

from .adapter_options import ServedAdapterOptions
from .console import Console
from .context_options import ContextOptions
from .flags import given_flags, given_values, running_command, takes_flags
from .image_options import ProjectorOptions
from .leaving import end_server, leave_at_signals
from .log import show_log
from .open_model import print_choice
from .override_options import OverrideOptions
from .replicated import read_plan, serve_replicas
from .router_options import RouterOptions
from .sampling_options import SamplingOptions
from .scale_options import ScaleOptions
from .serve_flags import ServeFlags
from .serve_options import (
    CacheOptions,
    EmbeddingOptions,
    LimitOptions,
    ListenOptions,
    LogOptions,
    TemplateOptions,
    open_listeners,
    settings_remarks,
)
from .served_model import ServedModel
from .several_models import serve_models
from .shared_options import ModelOptions, PlaceOptions, RuleOptions, VoiceOptions
from .spec_options import ControlFlags, SpecFlags
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
    adapters: ServedAdapterOptions,
    place: PlaceOptions,
    listen: ListenOptions,
    limits: LimitOptions,
    cache: CacheOptions,
    context: ContextOptions,
    templates: TemplateOptions,
    vectors: EmbeddingOptions,
    sampling: SamplingOptions,
    spec: SpecFlags,
    control: ControlFlags,
    rules: RuleOptions,
    overrides: OverrideOptions,
    router: RouterOptions,
    scale: ScaleOptions,
    voice: VoiceOptions,
    log: LogOptions,
) -> None:
    """Answer requests over HTTP, as llama-server and OpenAI do.

    Sampling values come from the request, else from flags, else from what the model's file
    recommends, else from the defaults shown here. --parallel sequences share --ctx-size.
    """
    # Everything that can be wrong with the command line comes before anything slow.
    output = log.console(voice)
    show_log(output)
    flags = ServeFlags(
        models, projector, adapters, place, listen, limits, cache, context, templates, vectors,
        sampling, spec, control, rules, overrides, log, given_flags(), voice.verbose,
    )  # fmt: skip
    settings = flags.settings()
    if router.is_used:
        if scale.uses_ray:
            raise typer.BadParameter("--replicas are of one model, not of --models-dir")
        serve_models(router, given_values(), running_command(), settings, flags, output)
    plan = read_plan(scale, place)
    recipe, settings = flags.find(settings, output)
    opened = open_listeners(listen, settings) if plan is None else None
    for line in settings_remarks(settings):
        output.remark(line)
    print_choice(models, recipe.model, output)
    if plan is not None:
        serve_replicas(recipe, settings, listen, plan, output)
    elif opened is not None:
        serve_one(recipe, settings, opened, output)


def serve_one(
    recipe: ServedModel, settings: ServerSettings, opened: tuple[list[socket], str], output: Console
) -> NoReturn:
    """Answer on sockets; the address of the first is beside them."""
    from ..core.server.loading import size_line, worker_for

    sockets, url = opened
    worker = worker_for(lambda: recipe.load(output), settings)

    def ready() -> None:
        gc.enable()
        assert worker.loaded is not None, "it is ready"
        output.remark(f"ready      {url} ({size_line(worker.loaded)})")

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
    end_server(code, has_ended=has_ended)
