"""`spec convert train`: a drafter for a model, out of texts that the model writes itself."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec.structs import replace

from ...core.errors import MissingDependencyError
from ..console import Console
from ..flags import REQUIRED, flag, flag_group, given_flags, takes_flags
from ..open_model import choose_model, open_runtime, print_choice
from ..sampling_options import RANDOM_SEED, SamplingOptions, not_given
from ..shared_options import ModelOptions, PlaceOptions, VoiceOptions
from ..usage import flag_errors
from .writing import FORCE, JSON, THREADS, ended_in_order, finish, quoted, size

if TYPE_CHECKING:
    from ...convert.train.drafter_run import TrainedDrafter, TrainingOptions
    from ...core.sampling.params import SamplingParams

KINDS = {"eagle3": "an EAGLE3 drafter", "mtp": "an MTP head"}
SEED = 1


@flag_group("Drafter")
class TrainedOptions:
    output: Path = flag("--output -o DRAFTER", "Output file.", REQUIRED)
    kind: str = flag("--kind KIND", "Kind of drafter: eagle3, or mtp.", "eagle3")
    draft_vocab: int = flag(
        "--draft-vocab N",
        "Tokens that it can draft (mtp: that the loss counts), the most frequent of the texts.",
        8192,
        min=32,
    )
    force: bool = FORCE


@flag_group("Texts")
class TrainingTexts:
    prompts: Path | None = flag(
        "--prompts FILE",
        "Prompts that the model answers, one a line, or as of bench-spec; built-in ones if not "
        "given.",
    )
    texts: Path | None = flag(
        "--texts PATH",
        "Texts to train on instead: a file, or all files of a folder. JSON lines have text, or "
        "tokens and n_prompt.",
    )
    start_from: Path | None = flag(
        "--start-from DRAFTER",
        "Go on from a drafter that this command has trained, or, for mtp, from any MTP head.",
    )
    tokens: int = flag(
        "--tokens N", "Tokens of answers; as many as --minutes have time for if not given.", 0,
        min=0,
    )  # fmt: skip


@flag_group("Run")
class TrainingRunOptions:
    minutes: float = flag("--minutes N", "Minutes for all of it.", 60.0, min=0.01)
    steps: int = flag("--steps N", "Steps of training, instead of --minutes.", 0, min=0)
    work: Path | None = flag(
        "--work DIR", "Folder that a stopped run goes on from.  [default: DRAFTER.work]"
    )
    disk: str = flag("--disk SIZE", "Most that features may take there: 500M, 8G.", "8G")
    threads: int | None = THREADS
    judge: bool = flag("--judge/--no-judge", "A table of what the drafter gains, at the end.", True)
    json: bool = JSON


@takes_flags
def train(
    models: ModelOptions,
    drafter: TrainedOptions,
    texts: TrainingTexts,
    runs: TrainingRunOptions,
    sampling: SamplingOptions,
    voice: VoiceOptions,
) -> None:
    """Train a drafter for a model. Needs the extra nextn[train].

    spec convert train -m model.gguf -o model-eagle3.gguf --minutes 60

    The model answers prompts at the sampling values to be served, and an EAGLE3 drafter, or an MTP
    head (--kind mtp), learns from its hidden rows what it writes next. A stopped run goes on when
    its command is repeated.
    """
    output = voice.console()
    check_flags(drafter, texts)
    require_torch()
    with flag_errors():
        options, params = read_training(drafter, texts, runs, sampling, output)
    model = choose_model(models, output)
    print_choice(models, model, output)
    check_place(drafter, [model] if texts.start_from is None else [model, texts.start_from])
    folder = runs.work or drafter.output.with_name(drafter.output.name + ".work")
    with ended_in_order(), output.cleared():
        trained, params = run_training(model, options, params, folder, runs.threads, output)
        from ...convert.train.trained_file import write_trained

        written = write_trained(
            drafter.output, model, trained, params, folder, runs.threads, output
        )
    output.remark(f"file       {written.kind}: {written.line}")
    if (before := written.before) is not None:
        output.remark(f"before     {trained.kind.begins}: {before.length:.3f} tokens a step")
    n_bytes = size(drafter.output.stat().st_size)
    what = f"{KINDS[drafter.kind]} for {trained.plan.model_name}, {n_bytes}"
    output.remark(f"the work folder {folder} may be deleted")
    command = f"spec generate -m {quoted(model)} -md {quoted(drafter.output)}"
    if runs.judge:
        from .train_report import judge

        judge(model, drafter.output, drafter.kind, trained.judged_by, params, runs.threads, output)
    if drafter.kind == "mtp":
        attach = f"spec convert attach {quoted(model)} --from {quoted(drafter.output)} --replace"
        output.remark(f"one file of both: {attach} -o {quoted(f'{model.stem}-mtp.gguf')}")
    finish(
        output, [drafter.output], what, command, as_json=runs.json,
        acceptance=written.measured.by_place, tokens_per_step=written.measured.length,
        tokens_per_step_before=None if before is None else before.length,
        steps=trained.plan.steps, texts=trained.plan.n_texts, tokens=trained.n_tokens,
    )  # fmt: skip


def check_flags(drafter: TrainedOptions, texts: TrainingTexts) -> None:
    if drafter.kind not in KINDS:
        raise typer.BadParameter(f"--kind is {' or '.join(KINDS)}, got {drafter.kind!r}")
    if texts.prompts is not None and texts.texts is not None:
        raise typer.BadParameter("--prompts and --texts exclude each other")
    if texts.start_from is not None and not texts.start_from.is_file():
        raise typer.BadParameter(f"--start-from: there is no file {texts.start_from}")
    if not drafter.output.parent.is_dir():
        raise typer.BadParameter(f"--output: {drafter.output.parent} is not a folder")
    if drafter.output.exists() and not drafter.force:
        raise typer.BadParameter(f"{drafter.output} exists; give --force to replace it")


def check_place(drafter: TrainedOptions, inputs: Sequence[Path]) -> None:
    """Before anything slow."""
    from ...convert.files.output_file import OutputFile, check_output

    check_output(OutputFile(drafter.output, drafter.force), inputs, 0)


def require_torch() -> None:
    try:
        import torch  # noqa: F401 - whether it is there
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            "training needs torch, which is not installed; run: pip install 'nextn[train]'"
        ) from None


def read_training(
    drafter: TrainedOptions,
    texts: TrainingTexts,
    runs: TrainingRunOptions,
    sampling: SamplingOptions,
    output: Console,
) -> tuple[TrainingOptions, SamplingParams]:
    from ...convert.files.recombine import parse_size
    from ...convert.train.drafter_run import TrainingOptions

    seed = sampling.seed if "seed" in given_flags() else SEED
    if seed == RANDOM_SEED:
        seed = secrets.randbits(31)
        output.remark(f"seed       {seed}")
    options = TrainingOptions(
        minutes=runs.minutes,
        disk=parse_size(runs.disk),
        draft_vocab=drafter.draft_vocab,
        seed=seed,
        tokens=texts.tokens,
        steps=runs.steps,
        prompts=texts.prompts,
        texts=texts.texts,
        start_from=texts.start_from,
        kind=drafter.kind,
    )
    return options, replace(sampling.params(), seed=seed)


def run_training(
    model: Path,
    options: TrainingOptions,
    params: SamplingParams,
    folder: Path,
    threads: int | None,
    output: Console,
) -> tuple[TrainedDrafter, SamplingParams]:
    """The drafter, and the sampling values of its texts."""
    import torch

    from ...convert.train.answer_writing import N_CTX
    from ...convert.train.drafter_run import DrafterRun
    from ...core.speculation.options import NO_SPECULATION

    if threads is not None:
        torch.set_num_threads(threads)
    place = PlaceOptions(ctx_size=N_CTX, threads=threads)
    with open_runtime(model, place, output, NO_SPECULATION) as runtime:
        recommended = not_given(runtime.recommended_sampling, given_flags())
        params = replace(params, **recommended)
        return DrafterRun(runtime, options, params, folder, output).run(), params
