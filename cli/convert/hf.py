"""`spec convert hf`: a checkpoint of safetensors files to a GGUF file."""

from __future__ import annotations

import json
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from ...core.errors import ConfigError
from ..flags import takes_flags
from ..options import VoiceOptions
from ..output import Output

if TYPE_CHECKING:
    from ...convert.hf import Conversion

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    SECTION: ClassVar = "Checkpoint"

    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A folder with config.json, .safetensors files and a tokenizer.",
        ),
    ]
    no_mtp: Annotated[bool, typer.Option("--no-mtp", help="Leave the MTP head out.")] = False
    mtp_only: Annotated[
        bool,
        typer.Option(
            "--mtp-only",
            help="Only the MTP head, as a file of its own to be given with -md beside a model.",
        ),
    ] = False
    pre: Annotated[
        str | None,
        typer.Option(
            "--pre", metavar="NAME",
            help="How the tokenizer cuts text (qwen2, llama-bpe, ...), if it is not recognised.",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileOptions:
    SECTION: ClassVar = "Result"

    out: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT",
            help="The GGUF file, or a folder to put it in under a name of its own.",
        ),
    ]  # fmt: skip
    type: Annotated[
        str,
        typer.Option(
            "--type", metavar="TYPE",
            help="Of matrices: f32, f16, bf16 or q8_0; auto keeps what the checkpoint has.",
        ),
    ] = "auto"  # fmt: skip
    max_shard_size: Annotated[
        str | None,
        typer.Option(
            "--max-shard-size", metavar="SIZE",
            help="Split into files of so many bytes at most, such as 4G or 500M.",
        ),
    ] = None  # fmt: skip
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


@takes_flags
def hf(checkpoint: CheckpointOptions, file: FileOptions, voice: VoiceOptions) -> None:
    """Convert a checkpoint of safetensors files to GGUF.

    Example: spec convert hf ./Qwen3.5-0.8B -o qwen.gguf --type q8_0

    For llama (Mistral, Mixtral), qwen2, qwen3, qwen3moe, qwen3next, qwen35 and qwen35moe, MTP
    head, tokenizer and chat template included. Memory stays small whatever the size.
    """
    from ...convert.checkpoint import open_checkpoint
    from ...convert.hf import Options, plan_conversion
    from ...convert.hf.encoding import TYPES

    kind = file.type.lower()
    if kind not in TYPES:
        raise typer.BadParameter(f"--type must be one of {', '.join(TYPES)}, got {file.type!r}")
    if checkpoint.no_mtp and checkpoint.mtp_only:
        raise typer.BadParameter("--no-mtp and --mtp-only exclude each other")
    mtp = "without" if checkpoint.no_mtp else "only" if checkpoint.mtp_only else "with"
    shard_bytes = parse_size(file.max_shard_size)
    output = Output(quiet=voice.quiet, verbose=voice.verbose)
    start = time.perf_counter()
    with open_checkpoint(checkpoint.folder) as opened:
        output.progress("reading the checkpoint's headers and tokenizer", 0.0)
        try:
            plan = plan_conversion(opened, checkpoint.folder, Options(kind, mtp, checkpoint.pre))
        finally:
            output.clear_progress()
        out = target(file.out, checkpoint.folder, plan, is_head=mtp == "only")
        for note in plan.notes:
            output.remark(f"note: {note}")
        paths = [out] if file.dry_run else write(plan, out, file, shard_bytes, output)
    seconds = time.perf_counter() - start
    if file.json:
        output.line(json.dumps(report(plan, paths, seconds, is_written=not file.dry_run)))
    elif file.dry_run:
        for line in plan_lines(plan, out):
            output.line(line)
    if not file.dry_run:
        output.remark(summary(plan, paths, seconds, is_head=mtp == "only"))


def target(out: Path, folder: Path, plan: Conversion, *, is_head: bool) -> Path:
    if not out.is_dir():
        return out
    from ...convert.hf.general import model_name

    stem = re.sub(r"[^\w.+-]+", "-", model_name(folder)) or "model"
    return out / f"{'mtp-' if is_head else ''}{stem}-{plan.kind.upper()}.gguf"


def write(
    plan: Conversion, out: Path, file: FileOptions, shard_bytes: int | None, output: Output
) -> list[Path]:
    try:
        return plan.write(
            out, max_shard_bytes=shard_bytes, overwrite=file.force, progress=output.progress
        )
    except ConfigError as error:
        hint = "; --force replaces it" if "exists already" in str(error) else ""
        raise typer.BadParameter(str(error) + hint) from None
    finally:
        output.clear_progress()


def parse_size(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)b?", text.strip().lower())
    size = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if size < 1:
        raise typer.BadParameter(
            f"--max-shard-size must be a size such as 4G or 500M, got {text!r}"
        )
    return int(size)


def plan_lines(plan: Conversion, out: Path) -> list[str]:
    types = ", ".join(f"{n} {name}" for name, n in plan.types().items())
    heads = ", MTP head" if plan.sizes.n_mtp else ""
    tokens = plan.metadata["tokenizer.ggml.tokens"]
    return [
        f"{plan.label}: {plan.architecture}, {plan.sizes.n_layers} layers{heads}, "
        f"{plan.n_params / 1e6:.1f} M parameters",
        f"tokenizer  {plan.metadata['tokenizer.ggml.model']} "
        f"({plan.metadata['tokenizer.ggml.pre']}), {len(tokens)} tokens, "
        f"{'a' if 'tokenizer.chat_template' in plan.metadata else 'no'} chat template",
        f"tensors    {len(plan.planned)}: {types}",
        f"would be   {out}, {plan.n_bytes / 2**20:.1f} MiB; nothing was written",
    ]


def report(
    plan: Conversion, paths: list[Path], seconds: float, *, is_written: bool
) -> dict[str, Any]:
    return {
        "architecture": plan.architecture,
        "type": plan.kind,
        "files": [str(path) for path in paths],
        "written": is_written,
        "bytes": sum(path.stat().st_size for path in paths) if is_written else plan.n_bytes,
        "parameters": plan.n_params,
        "tensors": len(plan.planned),
        "types": plan.types(),
        "layers": plan.sizes.n_layers,
        "mtp_heads": plan.sizes.n_mtp,
        "tokenizer": plan.metadata["tokenizer.ggml.model"],
        "pre": plan.metadata["tokenizer.ggml.pre"],
        "chat_template": "tokenizer.chat_template" in plan.metadata,
        "notes": plan.notes,
        "seconds": round(seconds, 3),
    }


def summary(plan: Conversion, paths: list[Path], seconds: float, *, is_head: bool) -> str:
    size = sum(path.stat().st_size for path in paths)
    what = "MTP head" if is_head else plan.architecture
    if plan.sizes.n_mtp and not is_head:
        what += " with its MTP head"
    shards = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    first = shlex.quote(str(paths[0]))
    then = f"spec generate -m MODEL -md {first}" if is_head else f"spec convert check {first}"
    return (
        f"wrote {paths[0]}{shards}: {what}, {plan.kind.upper()}, {size / 2**20:.1f} MiB in "
        f"{seconds:.1f} s; next: {then}"
    )
