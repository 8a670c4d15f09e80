"""`spec convert extract`: the MTP head of a GGUF in a file of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from ..flags import takes_flags
from ..options import VoiceOptions
from ..output import Output
from .writing import ForceOption, JsonOption, quoted, record, say_written, size, writing


@dataclass(frozen=True, slots=True)
class FileOptions:
    SECTION: ClassVar = "Files"

    file: Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF with its MTP head.")]


@dataclass(frozen=True, slots=True)
class ExtractOutput:
    SECTION: ClassVar = "Output"

    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT", help="The file to write; mtp-FILE unless given."
        ),
    ] = None
    force: ForceOption = False
    json: JsonOption = False


@takes_flags
def extract(files: FileOptions, out: ExtractOutput, voice: VoiceOptions) -> None:
    """Write the MTP head of a GGUF into a file of its own, for -md here and in llama.cpp.

    spec convert extract Qwen3.6-27B-Q4_K_M.gguf -o mtp-Qwen3.6-27B.gguf
    """
    output = Output(quiet=voice.quiet, verbose=voice.verbose)

    from ...convert.files.output_file import OutputFile
    from ...convert.files.recombine import extract as extract_head
    from ...core.gguf.reader import open_gguf

    path = out.output or Path(f"mtp-{files.file.name}")
    with open_gguf(files.file) as file:
        architecture = file.metadata.architecture
        with writing(output, path) as progress:
            (written,), n_heads = extract_head(file, OutputFile(path, out.force), progress)
    n_bytes = written.stat().st_size
    what = f"{n_heads} MTP head{'s' * (n_heads > 1)}, {size(n_bytes)}"
    say_written(output, [written], what, next_command(architecture, files.file, written))
    if out.json:
        output.line(json.dumps(record([written], architecture=architecture, heads=n_heads)))


def next_command(architecture: str, model: Path, head: Path) -> str:
    from ...core.models import ARCHITECTURES

    if architecture in ARCHITECTURES:
        return f"spec generate -m {quoted(model)} -md {quoted(head)} --spec-type mtp 'Once upon a'"
    return f"llama-server -m {quoted(model)} -md {quoted(head)} --spec-type draft-mtp"
