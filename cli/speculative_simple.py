"""`spec speculative-simple`: the loop of `core/simple.py` on one prompt, and what it counted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from .adapter_options import AdapterOptions
from .console import READING, Console
from .flags import flag, flag_group, takes_flags
from .generate_params import build_params, with_file_defaults
from .open_model import choose_drafts, choose_model, open_runtime, print_choice
from .override_options import OverrideOptions
from .sampling_options import SamplingOptions
from .shared_options import (
    IGNORE_EOS,
    PREDICT,
    ModelOptions,
    PlaceOptions,
    PromptOptions,
    ResultOptions,
    TextOptions,
    VoiceOptions,
)
from .spec_options import SpecFlags, build_spec
from .summary import SHOWN_PLACES
from .usage import flag_errors

if TYPE_CHECKING:
    from ..core.generation import GenerateParams
    from ..core.runtime import Runtime
    from ..core.simple import CountedSpeculator, SimpleLoop

ACCEPTED = "32"  # green


@flag_group("Text")
class LoopOptions:
    predict: int = PREDICT
    ignore_eos: bool = IGNORE_EOS
    color: bool = flag("--color", "Colour for accepted draft tokens.")


@takes_flags
def speculative_simple(  # noqa: PLR0913 - groups of flags
    prompts: PromptOptions,
    models: ModelOptions,
    adapters: AdapterOptions,
    place: PlaceOptions,
    texts: LoopOptions,
    sampling: SamplingOptions,
    spec: SpecFlags,
    overrides: OverrideOptions,
    voice: VoiceOptions,
) -> None:
    """The loop of speculative decoding, plain: core/simple.py is one page to read.

    One sequence, no controller: the first speculator that has a draft is used, and drafts are as
    long as allowed. The text is the same as that of generate.
    """
    limits = TextOptions(predict=texts.predict, ignore_eos=texts.ignore_eos)
    params = build_params(limits, sampling, ResultOptions())
    speculation, changes = build_spec(spec), overrides.values()
    text = prompts.read()
    output = voice.console()
    model, drafts = choose_model(models, output, spec), choose_drafts(spec, models, output)
    if texts.color and not output.has_colours:
        output.remark("--color shows nothing here: stdout is no terminal with colours")
    print_choice(models, model, output)
    lora = adapters.files()
    with open_runtime(
        model, place, output, speculation, drafts, overrides=changes, lora=lora
    ) as runtime:
        params = with_file_defaults(params, runtime)
        prompt = runtime.tokenizer.encode(text)
        loop = make_loop(runtime, output)
        prompts.show(text, output)
        try:
            write(runtime, loop, prompt, params, output, ACCEPTED if texts.color else "")
        finally:
            loop.close()
            output.end_text()  # an error gets a line of its own


def make_loop(runtime: Runtime, output: Console) -> SimpleLoop:
    """Return the loop, with all kernels compiled."""
    from ..core.simple import SimpleLoop
    from ..core.speculation.build import make_speculators

    with flag_errors(), output.cleared():
        speculators = make_speculators(runtime.setting(1))
        return SimpleLoop(runtime.model, runtime.backend, speculators, runtime.n_ctx)


def write(
    runtime: Runtime,
    loop: SimpleLoop,
    prompt: list[int],
    params: GenerateParams,
    output: Console,
    colour: str,
) -> None:
    from ..core.engine.samplers import SamplerMaker
    from ..core.generation import TARGET

    runtime.check_prompt(prompt)
    tokenizer = runtime.tokenizer
    sampler = SamplerMaker(tokenizer, runtime.n_vocab).make(params, 0)
    room = runtime.n_ctx - len(prompt)
    n_predict = room if params.max_tokens is None else min(params.max_tokens, room)
    stream = tokenizer.stream(continues=True)
    began_at, n_written, is_interrupted = time.perf_counter(), 0, False
    output.progress(READING, 0.0)
    try:
        for token, source in loop.write(prompt, sampler, n_predict, tokenizer.eog_ids):
            n_written += 1
            if token not in tokenizer.eog_ids:
                output.text(stream.push(token), "" if source == TARGET else colour)
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        output.clear_progress()
    seconds = time.perf_counter() - began_at
    output.text(stream.finish())
    output.end_text()
    for line in report(runtime, loop, len(prompt), n_written, seconds, params):
        output.remark(line)
    if is_interrupted:
        raise typer.Exit(130)


def report(
    runtime: Runtime,
    loop: SimpleLoop,
    n_prompt: int,
    n_written: int,
    seconds: float,
    params: GenerateParams,
) -> list[str]:
    """The lines and names of llama.cpp's example."""
    n_drafted = sum(drafter.n_drafted for drafter in loop.drafters)
    n_accepted = sum(drafter.n_accepted for drafter in loop.drafters)
    share = f"{100 * n_accepted / n_drafted:.3f}%" if n_drafted else "nothing was drafted"
    seed = [f"seed      = {params.sampling.seed}"] if params.sampling.temperature else []
    written_s = seconds - loop.prompt_s
    return [
        f"encoded {rate(n_prompt, loop.prompt_s)}",
        f"decoded {rate(n_written, written_s)}",
        f"n_draft   = {runtime.spec.n_max}",
        f"n_predict = {n_written}",  # as in llama.cpp: the number generated, not the limit
        f"n_drafted = {n_drafted}",
        f"n_accept  = {n_accepted}",
        f"accept    = {share}",
        *seed,
        *map(statistics_line, loop.drafters),
        f"load {runtime.load_ms:.2f} ms, prompt {1000 * loop.prompt_s:.2f} ms, "
        f"{loop.n_passes} passes of the target {1000 * loop.passes_s:.2f} ms, "
        f"all {1000 * seconds:.2f} ms",
    ]


def rate(n_tokens: int, seconds: float) -> str:
    speed = n_tokens / seconds if seconds > 0 else 0.0
    return f"{n_tokens:4} tokens in {seconds:8.3f} seconds, speed: {speed:8.3f} t/s"


def statistics_line(drafter: CountedSpeculator) -> str:
    """Calls of begin, draft and accept; per place, of all drafts; times of the three."""
    n = drafter.n_drafts
    rates = ", ".join(f"{accepted / n:.3f}" for accepted in drafter.by_place[:SHOWN_PLACES])
    rates += ", ..." if len(drafter.by_place) > SHOWN_PLACES else ""
    of_drafts = (
        f", #mean acc len = {1 + drafter.n_accepted / n:.2f}, #acc rate/pos = ({rates})"
        if n
        else ""
    )
    times = ", ".join(
        f"{1000 * s:.3f}" for s in (drafter.begin_s, drafter.draft_s, drafter.learn_s)
    )
    return (
        f"statistics {drafter.name}: #calls(b,g,a) = 1 {drafter.n_calls} {n}, #gen drafts = {n}, "
        f"#acc drafts = {drafter.n_accepted_drafts}, #gen tokens = {drafter.n_drafted}, "
        f"#acc tokens = {drafter.n_accepted}{of_drafts}, dur(b,g,a) = {times} ms"
    )
