"""`spec convert attach`: an MTP head into a GGUF file that lost it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec.structs import replace

from ..console import Console
from ..flags import REQUIRED, argument, flag, flag_group, takes_flags
from ..shared_options import VoiceOptions
from ..usage import flag_errors
from .writing import (
    FORCE,
    JSON,
    REVISION,
    SPLIT,
    drafting_command,
    duration,
    finish,
    read_size,
    size,
    writing,
)

if TYPE_CHECKING:
    from ...convert.checkpoint import ModelCheckpoint, StoredTensor
    from ...convert.files.attach_head import Attached
    from ...convert.files.head_types import TypeChoice
    from ...convert.files.output_file import OutputFile
    from ...convert.heads.stored_head import StoredHead
    from ...core.gguf.reader import GgufFile


@flag_group("Files")
class AttachFiles:
    target: Path = argument("TARGET", "Model: a GGUF, or any shard of one.")
    source: str = flag(
        "--from SOURCE",
        "Source of the head: the original checkpoint's folder (safetensors), one file of it, its "
        "repository owner/name (only the head is fetched), a GGUF of the same model that has its "
        "head, or an mtp-*.gguf.",
        REQUIRED,
    )
    revision: str | None = REVISION
    replace: bool = flag("--replace", "Take out the head that TARGET has.")
    trust: bool = flag(
        "--trust", "Attach it although SOURCE seems to be another model: a fine-tune, say."
    )


@flag_group("Types")
class HeadTypeOptions:
    type: str | None = flag(
        "--type TYPE",
        "Type of the head's matrices: q8_0, q6_k, q4_k, bf16 or another type of quantize, or "
        "keep. Default: keep from a GGUF or for a model of floats, else q8_0.",
    )
    tensor_type: list[str] | None = flag(
        "--tensor-type RULE",
        "Type of some tensors, as in quantize: 'ffn_.*_exps=q4_k'. May be given several times; "
        "the first that fits decides.",
    )
    keep_copies: bool = flag(
        "--keep-copies",
        "Also write embedding and output matrices of the head that equal the model's.",
    )


@flag_group("Output")
class AttachOutput:
    output: Path | None = flag("--output -o OUT", "Output file.")
    in_place: bool = flag("--in-place", "Put the new file in TARGET's place; see --backup.")
    backup: bool = flag("--backup", "With --in-place: keep the old file as TARGET.bak.")
    force: bool = FORCE
    split_max_size: str | None = SPLIT
    json: bool = JSON


@takes_flags
def attach(
    files: AttachFiles, types: HeadTypeOptions, out: AttachOutput, voice: VoiceOptions
) -> None:
    """Give a GGUF the MTP head that it was trained with, and leave all else as it is.

    spec convert attach model-Q4_K_M.gguf --from Qwen3.6-27B/ -o model-mtp.gguf
    """
    check_places(out)
    output = voice.console()

    from ...convert.files.attach_head import attach_head, check_target, default_type
    from ...convert.files.head_source import open_source
    from ...core.gguf.reader import GgufFile, open_gguf

    choice = type_choice(types)
    max_bytes = read_size(out.split_max_size)
    with open_gguf(files.target) as target:
        check_target(target, replaces=files.replace)
        place = output_file(out, target, max_bytes)
        output.progress(f"reading {files.source}", 0.0)
        with output.cleared(), open_source(files.source, files.revision) as source:
            head = read_head(source, target, output, keep_copies=types.keep_copies)
            output.clear_progress()
            from_gguf = source if isinstance(source, GgufFile) else None
            for line in head.remarks:
                output.remark(line)
            choice = choice or type_choice(
                types, default_type(target, from_gguf=from_gguf is not None)
            )
            assert choice is not None
            with writing(output, place.path) as progress:
                done = attach_head(
                    target,
                    head,
                    place,
                    choice,
                    replaces=files.replace,
                    trusts=files.trust,
                    source=from_gguf,
                    progress=progress,
                )
    for line in remarks_on(done):
        output.remark(line)
    finish(
        output,
        done.paths,
        describe_head(place, done),
        drafting_command(done.paths[0]),
        as_json=out.json,
        target=str(files.target),
        source=files.source,
        architecture=head.architecture,
        heads=done.n_heads,
        head_bytes=done.n_bytes,
        tensors=done.n_tensors,
        types=done.types,
        trusted=done.suspicions,
        unused_rules=done.unused_rules,
        backup=None if place.backup is None else str(place.backup),
    )


def remarks_on(done: Attached) -> list[str]:
    unused = (f"--tensor-type {rule} fits no tensor of the head" for rule in done.unused_rules)
    return [
        *(f"trusted: {doubt}" for doubt in done.suspicions),
        *(f"warning: {text}" for text in unused),
    ]


def check_places(out: AttachOutput) -> None:
    if out.in_place == (out.output is not None):
        raise typer.BadParameter("where to? Give --output OUT, or --in-place --backup")
    if out.in_place and not out.backup:
        raise typer.BadParameter("--in-place needs --backup, which keeps the old file")
    if out.backup and not out.in_place:
        raise typer.BadParameter("--backup is for --in-place; with --output nothing is replaced")
    if out.in_place and out.split_max_size:
        raise typer.BadParameter("--split-max-size makes several files: use it with --output")


def type_choice(types: HeadTypeOptions, default: str | None = None) -> TypeChoice | None:
    """None if there is no --type and no default: rules are checked all the same."""
    from ...convert.files.head_types import TypeChoice, check_type
    from ...convert.quantize.type_rules import parse_rule

    with flag_errors():
        rules = [parse_rule(text) for text in types.tensor_type or []]
        wanted = default if types.type is None else check_type(types.type)
    return None if wanted is None else TypeChoice(wanted, tuple(rules))


def output_file(out: AttachOutput, target: GgufFile, max_bytes: int | None) -> OutputFile:
    from ...convert.files.output_file import OutputFile

    if out.output is None:
        return OutputFile.in_place(target)
    return OutputFile(out.output, out.force, max_bytes)


def read_head(
    source: ModelCheckpoint | GgufFile, target: GgufFile, output: Console, *, keep_copies: bool
) -> StoredHead:
    from ...convert.files.gguf_head import read_gguf_head
    from ...convert.heads.from_checkpoint import read_checkpoint_head
    from ...convert.hf.drafters import refuse_drafter
    from ...core.gguf.reader import GgufFile

    if isinstance(source, GgufFile):
        return read_gguf_head(source)
    refuse_drafter(source)
    architecture = target.metadata.architecture
    head = read_checkpoint_head(source, architecture, target.tensors, keep_copies=keep_copies)
    return replace(head, fetch=partial(fetch_tensors, head.stored, output))


def fetch_tensors(stored: Sequence[StoredTensor], output: Console) -> None:
    """Those of a repository, at once: experts alone are a thousand."""
    from ...convert.checkpoint.repository import fetch_ahead

    began = time.perf_counter()

    def progress(done: int, total: int) -> None:
        seconds = (time.perf_counter() - began) * (total - done) / max(done, 1)
        output.progress(f"fetching the head, {duration(seconds)} left", done / max(total, 1))

    fetch_ahead(stored, progress)


def describe_head(place: OutputFile, done: Attached) -> str:
    heads = "1 MTP head" if done.n_heads == 1 else f"{done.n_heads} MTP heads"
    kinds = ", ".join(f"{n} {name}" for name, n in sorted(done.types.items()))
    kept = f"; the old file is {place.backup}" if place.backup else ""
    return f"{heads} attached, {done.n_tensors} tensors ({kinds}), {size(done.n_bytes)}{kept}"
