"""`spec generate`: continue one prompt."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import typer

from ..core.errors import ConfigError
from . import options
from .output import Output
from .prompt import read_prompt

if TYPE_CHECKING:
    from pathlib import Path

    from ..core.generation import GenerateParams
    from ..core.runtime import Runtime

RANDOM_SEED = -1  # as in llama.cpp
UNLIMITED = -1
INTERRUPTED = "interrupted"  # the one stop reason that is not the runtime's


def generate(  # noqa: PLR0913 - one parameter per flag
    prompt_argument: options.PromptArgument = None,
    model: options.Model = None,
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    predict: options.MaxTokens = UNLIMITED,
    ctx_size: options.ContextSize = 0,
    seed: options.Seed = RANDOM_SEED,
    temp: options.Temperature = 0.8,
    top_k: options.TopK = 40,
    top_p: options.TopP = 0.95,
    device: options.Device = "auto",
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Continue a prompt: the text on stdout, progress and a summary on stderr."""
    # Everything that can be wrong with the command line comes before anything slow.
    if model is None:
        raise typer.BadParameter("no model: give one with -m model.gguf")
    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other")
    text = read_prompt(prompt_argument, prompt, file)
    params = build_params(predict, seed, temp, top_k, top_p)
    output = Output(quiet=quiet, verbose=verbose)

    with open_runtime(model, device, ctx_size, output) as runtime:
        output.describe_model(runtime)
        stream(runtime, text, params, output)


def build_params(predict: int, seed: int, temp: float, top_k: int, top_p: float) -> GenerateParams:
    from ..core.generation import GenerateParams
    from ..core.sampling.params import SamplingParams

    if predict < 1 and predict != UNLIMITED:
        raise typer.BadParameter(f"--predict must be at least 1, or -1 for no limit, got {predict}")
    # 32 random bits are enough to differ and short enough to type again.
    chosen = secrets.randbits(32) if seed == RANDOM_SEED else seed
    try:
        return GenerateParams(
            sampling=SamplingParams(temperature=temp, top_k=top_k, top_p=top_p, seed=chosen),
            max_tokens=None if predict == UNLIMITED else predict,
        )
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def open_runtime(model: Path, device: str, ctx_size: int, output: Output) -> Runtime:
    from ..core import load

    try:
        return load(model, device, n_ctx=ctx_size or None, progress=output.progress)
    except ConfigError as error:  # before there is a model, only a flag can be at fault
        raise typer.BadParameter(str(error)) from None
    finally:
        output.clear_progress()


def stream(runtime: Runtime, text: str, params: GenerateParams, output: Output) -> None:
    """Print the text as it comes; Ctrl-C ends it early, with the summary so far."""
    stop_reason = ""
    try:
        for event in runtime.generate(text, params):
            output.text(event.text)
            stop_reason = event.stop_reason or stop_reason
    except KeyboardInterrupt:
        stop_reason = INTERRUPTED
    finally:
        output.end_text()
    sampling = params.sampling
    output.summary(runtime.stats, stop_reason, sampling.seed if sampling.temperature else None)
    if stop_reason == INTERRUPTED:
        raise typer.Exit(130)
