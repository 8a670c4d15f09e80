"""`spec convert hf`: a checkpoint of safetensors files to a GGUF file."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..console import Console
from ..flags import argument, flag, flag_group, takes_flags
from ..shared_options import VoiceOptions
from ..usage import flag_errors
from .writing import (
    FORCE,
    JSON,
    REVISION,
    SPLIT,
    THREADS,
    finish,
    quoted,
    read_size,
    size,
    writing,
)

if TYPE_CHECKING:
    from ...convert.checkpoint import FilePlace, ModelCheckpoint
    from ...convert.hf import Conversion, Options


@flag_group("Checkpoint")
class CheckpointOptions:
    checkpoint: str = argument(
        "CHECKPOINT",
        "Folder with config.json, .safetensors files and a tokenizer, or a repository owner/name, "
        "which is fetched into the cache.",
    )
    revision: str | None = REVISION
    no_mtp: bool = flag("--no-mtp", "Leave the MTP head out.")
    mtp_only: bool = flag(
        "--mtp-only", "Write only the MTP head, as a file for -md beside a model."
    )
    mmproj: bool = flag(
        "--mmproj", "Write only the vision tower, as a file for --mmproj beside a model."
    )
    pre: str | None = flag(
        "--pre NAME", "Pre-tokenizer (qwen2, llama-bpe, ...), if it is not recognised."
    )
    target_model_dir: str | None = flag(
        "--target-model-dir TARGET",
        "Model that a drafter drafts for: folder, repository or GGUF. Its tokenizer goes into the "
        "file, and its sizes are compared.",
    )

    @property
    def is_part(self) -> bool:
        """A small part of the checkpoint is written."""
        return self.mtp_only or self.mmproj

    @property
    def prefix(self) -> str:
        """Of the file's name."""
        return "mmproj-" if self.mmproj else "mtp-" if self.mtp_only else ""


@flag_group("Output")
class HfOutputOptions:
    output: Path | None = flag(
        "--output -o OUT", "GGUF file, or a folder to put it in under a name of its own."
    )
    type: str = flag(
        "--type TYPE",
        "Type of the matrices: f32, f16, bf16, q8_0, or a mixture of quantize such as Q4_K_M; "
        "auto keeps the checkpoint's own.",
        "auto",
    )
    force: bool = FORCE
    split_max_size: str | None = SPLIT
    dry_run: bool = flag("--dry-run", "Print what would be written, and write nothing.")
    json: bool = JSON
    threads: int | None = THREADS


@takes_flags
def hf(checkpoint: CheckpointOptions, result: HfOutputOptions, voice: VoiceOptions) -> None:
    """Convert a checkpoint of safetensors files to GGUF.

    spec convert hf ./Qwen3.5-0.8B -o qwen.gguf --type q8_0

    For Llama, Mistral, Qwen, GLM, DeepSeek, Kimi, MiMo, Step, K-EXAONE and Gemma, MTP heads,
    tokenizer and chat template included, and for drafters (EAGLE3, DFlash, DSpark, assistants of
    Gemma 4), with --target-model-dir. With --mmproj, the vision tower of a model.
    Memory stays small whatever the size.
    """
    if result.output is None and not result.dry_run:
        raise typer.BadParameter("where to? Give --output OUT, or --dry-run to see the plan")
    if checkpoint.no_mtp and checkpoint.mtp_only:
        raise typer.BadParameter("--no-mtp and --mtp-only exclude each other")
    if checkpoint.mmproj and (checkpoint.no_mtp or checkpoint.mtp_only):
        raise typer.BadParameter(
            "--mmproj writes the vision tower alone, without --no-mtp and --mtp-only"
        )
    convert_checkpoint(checkpoint, result, voice.console())


def convert_checkpoint(
    checkpoint: CheckpointOptions,
    result: HfOutputOptions,
    output: Console,
    *,
    only_drafters: bool = False,
) -> None:
    shard_bytes = read_size(result.split_max_size)

    from ...convert.checkpoint import open_place
    from ...convert.files.output_file import OutputFile, check_output
    from ...core.backend.cpu.threads import default_threads
    from ...core.errors import ConfigError

    options = read_options(checkpoint, result, output)
    began = time.perf_counter()
    with output.cleared():
        output.progress(f"reading {checkpoint.checkpoint}", 0.0)
        place = open_place(checkpoint.checkpoint, checkpoint.revision)
    opened, folder = describe(place, output)
    try:
        plan = make_plan(opened, folder, options, output)
        if only_drafters and not plan.drafter:
            raise ConfigError(f"{plan.label} holds a model, no drafter: spec convert hf takes it")
        for note in plan.notes:
            output.remark(f"note: {note}")
        path = target(result.output, folder, plan.kind, checkpoint.prefix)
        if result.dry_run:
            show_plan(plan, path, output, as_json=result.json)
            return
        target_file = OutputFile(path, result.force, shard_bytes)
        inputs = place.paths()
        check_output(target_file, inputs, plan.n_bytes)
        if not checkpoint.is_part:
            opened, plan = fetched(place, opened, plan, options, output)
        with writing(output, path) as progress:
            n_threads = result.threads or default_threads()
            paths = plan.write(target_file, progress, n_threads=n_threads, inputs=inputs)
    finally:
        opened.close()
        if options.target is not None:
            options.target.close()
        output.clear_progress()
    say_written(plan, paths, checkpoint, time.perf_counter() - began, output, as_json=result.json)


def read_options(
    checkpoint: CheckpointOptions, result: HfOutputOptions, output: Console
) -> Options:
    from ...convert.hf import Options
    from ...convert.hf.drafters import open_target
    from ...convert.hf.output_types import find_kind

    with flag_errors():
        kind = find_kind(result.type)
    mtp = "without" if checkpoint.no_mtp else "only" if checkpoint.mtp_only else "with"
    target = None
    if (where := checkpoint.target_model_dir) is not None:
        with output.cleared():
            output.progress(f"reading {where}", 0.0)
            target = open_target(where)
    return Options(kind, mtp, checkpoint.pre, target, mmproj=checkpoint.mmproj)


def describe(place: FilePlace, output: Console) -> tuple[ModelCheckpoint, Path]:
    """All but the weights, and the folder where that is."""
    from ...convert.checkpoint.folder import Folder, read_checkpoint
    from ...convert.checkpoint.repository import Repository
    from ...convert.hf.fetching import fetch_descriptions

    with output.cleared():
        if isinstance(place, Repository):
            fetch_descriptions(place, output.progress)
            return read_checkpoint(place), place.folder
        assert isinstance(place, Folder)
        return read_checkpoint(place), place.path


def make_plan(
    opened: ModelCheckpoint, folder: Path, options: Options, output: Console
) -> Conversion:
    from ...convert.hf import plan_conversion

    with output.cleared():
        output.progress("reading the checkpoint's headers and tokenizer", 0.0)
        return plan_conversion(opened, folder, options)


def fetched(
    place: FilePlace, opened: ModelCheckpoint, plan: Conversion, options: Options, output: Console
) -> tuple[ModelCheckpoint, Conversion]:
    """The same with the weights on this machine."""
    from ...convert.checkpoint.folder import read_checkpoint
    from ...convert.checkpoint.repository import Repository
    from ...convert.hf.fetching import fetch_weights

    if not isinstance(place, Repository):
        return opened, plan
    folder = place.folder
    with output.cleared():
        fetch_weights(place, opened, output.progress)
    output.remark(f"note: {place.label} was downloaded into the hub's cache: {folder}")
    opened.close()
    opened = read_checkpoint(place)
    return opened, make_plan(opened, folder, options, output)


def target(wanted: Path | None, folder: Path, kind: str, prefix: str) -> Path:
    from ...convert.hf.metadata_keys import model_name

    if wanted is not None and not wanted.is_dir():
        return wanted
    stem = re.sub(r"[^\w.+-]+", "-", model_name(folder)) or "model"
    name = f"{prefix}{stem}-{kind.upper()}.gguf"
    return (wanted or Path()) / name


def show_plan(plan: Conversion, path: Path, output: Console, *, as_json: bool) -> None:
    if as_json:
        found = {"output": [str(path)], "tensor_bytes": plan.n_bytes, **report(plan)}
        output.line(json.dumps(found))
        return
    for line in plan_lines(plan, path):
        output.line(line)


def plan_lines(plan: Conversion, path: Path) -> list[str]:
    types = ", ".join(f"{n} {name}" for name, n in plan.types().items())
    words = plan.drafter or plan.tower
    what = f"{words} ({plan.architecture})" if words else plan.architecture
    heads = ", MTP head" if plan.sizes.n_mtp else ""
    return [
        f"{plan.label}: {what}, {plan.sizes.n_layers} layers{heads}, "
        f"{plan.n_params / 1e6:.1f} M parameters",
        *([] if plan.tower else [tokenizer_line(plan)]),
        f"tensors    {len(plan.planned)}: {types}",
        f"would be   {path}, {size(plan.n_bytes)}; nothing was written",
    ]


def tokenizer_line(plan: Conversion) -> str:
    tokens = plan.metadata["tokenizer.ggml.tokens"]
    return (
        f"tokenizer  {plan.metadata['tokenizer.ggml.model']} "
        f"({plan.metadata['tokenizer.ggml.pre']}), {len(tokens)} tokens, "
        f"{'a' if 'tokenizer.chat_template' in plan.metadata else 'no'} chat template"
    )


def report(plan: Conversion) -> dict[str, Any]:
    return {
        "architecture": plan.architecture,
        "type": plan.kind,
        "parameters": plan.n_params,
        "tensors": len(plan.planned),
        "types": plan.types(),
        "layers": plan.sizes.n_layers,
        "mtp_heads": plan.sizes.n_mtp,
        "drafter": plan.drafter,
        "tower": plan.tower,
        "tokenizer": plan.metadata.get("tokenizer.ggml.model"),
        "pre": plan.metadata.get("tokenizer.ggml.pre"),
        "chat_template": "tokenizer.chat_template" in plan.metadata,
        "notes": plan.notes,
    }


def say_written(
    plan: Conversion,
    paths: list[Path],
    checkpoint: CheckpointOptions,
    seconds: float,
    output: Console,
    *,
    as_json: bool,
) -> None:
    what = describe_written(plan, paths, seconds, is_head=checkpoint.mtp_only)
    command = next_command(plan, checkpoint, quoted(paths[0]))
    more = report(plan) | {"seconds": round(seconds, 3)}
    finish(output, paths, what, command, as_json=as_json, **more)


def next_command(plan: Conversion, checkpoint: CheckpointOptions, path: str) -> str:
    if plan.drafter:
        model = checkpoint.target_model_dir or ""
        is_file = model.endswith(".gguf")
        return f"spec convert inspect {quoted(model) if is_file else 'MODEL.gguf'} --draft {path}"
    if plan.tower:
        return f"spec generate -m MODEL --mmproj {path} --image FILE"
    if checkpoint.mtp_only:
        return f"spec convert inspect MODEL.gguf --draft {path}"
    return f"spec convert check {path}"


def describe_written(plan: Conversion, paths: list[Path], seconds: float, *, is_head: bool) -> str:
    what = "MTP head" if is_head else plan.drafter or plan.tower or plan.architecture
    if plan.sizes.n_mtp and not is_head:
        what += " with its MTP head"
    n_bytes = sum(path.stat().st_size for path in paths)
    return f"{what}, {plan.kind.upper()}, {size(n_bytes)} in {seconds:.1f} s"
