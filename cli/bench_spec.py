"""`spec bench-spec`: configurations of speculation against each other, and gates for CI."""

from __future__ import annotations

from contextlib import ExitStack

import typer

from .adapter_options import AdapterOptions
from .bench_local import LocalBench
from .bench_options import (
    GateOptions,
    MethodOptions,
    PromptSetOptions,
    ReportOptions,
    ServerOptions,
    VersusOptions,
)
from .bench_output import check_results, deliver
from .bench_reading import (
    check_prompt_set,
    counts,
    flag_names,
    pick_prompts,
    read_gates,
    read_peers,
    read_prompt_file,
    read_schedule,
    read_servers,
    read_variants,
    settings_of,
)
from .bench_servers import compare_servers, open_remote, start_peers
from .flags import takes_flags
from .open_model import choose_model, open_runtime, print_choice
from .shared_options import ModelOptions, PlaceOptions, VoiceOptions
from .usage import flag_errors


@takes_flags
def bench_spec(  # noqa: PLR0913 - a group of flags each
    models: ModelOptions,
    adapters: AdapterOptions,
    place: PlaceOptions,
    work: PromptSetOptions,
    versus: VersusOptions,
    method: MethodOptions,
    servers: ServerOptions,
    limits: GateOptions,
    results: ReportOptions,
    voice: VoiceOptions,
) -> None:
    """Measure what speculation gains, in pairs, with intervals; fail a job on evidence.

    Every prompt is written by all configurations one right after the other, in random order, with
    empty caches. The report goes to stdout, progress and FAIL lines to stderr. Exit codes: 0 fine,
    1 failed, 2 wrong usage or a baseline that cannot be compared, 3 a gate was missed.
    """
    from ..core.bench.prompt_tokens import PromptRenderer
    from ..core.bench.variants import common_options
    from ..core.model_names import is_bundled

    output = voice.console()
    check_results(results)
    check_prompt_set(work.prompt_set)
    variants, schedule = read_variants(versus), read_schedule(method, work.seed)
    gates = read_gates(limits)
    if versus.synth is not None and gates.judges_figures:
        raise typer.BadParameter("--synth draws a curve, and has nothing that gates could judge")
    given = None if work.prompts is None else read_prompt_file(work.prompts)
    requests, peers = read_servers(servers), read_peers(servers)
    if versus.synth is not None and (requests.places or peers):
        raise typer.BadParameter("--synth is for drafts made here; leave --url and --peer out")
    lora = adapters.files()
    if lora and peers:
        raise typer.BadParameter("a peer runs without LoRA adapters; leave --lora or --peer out")
    with flag_errors(flag_names):
        wanted = common_options(variants)
    with ExitStack() as ends:
        remote = open_remote(requests, ends, output)
        if servers.stands_alone and not models.is_given and versus.vs is None:
            report = compare_servers(remote, given, work, schedule, gates, results.save, output)
            deliver(report, results, output)
        model = choose_model(models, output)
        print_choice(models, model, output)
        runtime = ends.enter_context(
            open_runtime(model, place, output, wanted, versus.drafts, lora=lora)
        )
        prompts = pick_prompts(
            given, work, lambda: not is_bundled(model) and PromptRenderer(runtime).has_template
        )
        bench = LocalBench(runtime, output, schedule, settings_of(work, prompts), place)
        prompts = bench.fitting(prompts)
        if versus.synth is not None:
            report = bench.sweep(variants, prompts, counts(versus.synth, "--synth", 64))
        else:
            settings = bench.peer_settings(model, versus.drafts)
            remote += start_peers(peers, requests, ends, settings)
            report = bench.compare(variants, prompts, gates, results.save, remote)
    deliver(report, results, output)
