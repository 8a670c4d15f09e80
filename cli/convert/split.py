"""`spec convert split`: a GGUF into shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from ..flags import takes_flags
from ..output import Output
from ..shared_options import VoiceOptions
from .writing import ForceOption, JsonOption, finish, quoted, read_size, size, writing


@dataclass(frozen=True, slots=True)
class SplitFiles:
    SECTION: ClassVar = "Files"

    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="GGUF; one in shards is divided anew.")
    ]
    split_max_size: Annotated[
        str,
        typer.Option(
            "--split-max-size", metavar="SIZE",
            help="Tensor data in a shard: 500M, 4G (10^9 bytes, as llama.cpp has it) or 4GiB.",
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SplitOutput:
    SECTION: ClassVar = "Output"

    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="PREFIX", help="Shards are PREFIX-00001-of-0000N.gguf."
        ),
    ]
    force: ForceOption = False
    json: JsonOption = False


@takes_flags
def split(files: SplitFiles, out: SplitOutput, voice: VoiceOptions) -> None:
    """Make shards of a GGUF, with llama.cpp's names and keys.

    spec convert split model.gguf -o model --split-max-size 4G
    """
    output = Output(quiet=voice.quiet, verbose=voice.verbose)

    from ...convert.files.output_file import OutputFile, shard_prefix
    from ...convert.files.recombine import split as split_file
    from ...core.gguf.reader import open_gguf

    max_bytes = read_size(files.split_max_size)
    path = shard_prefix(out.output)
    with open_gguf(files.file) as file, writing(output, path) as progress:
        written = split_file(file, OutputFile(path, out.force, max_bytes), progress)
    sizes = [path.stat().st_size for path in written]
    what = f"{len(written)} shards, {size(sum(sizes))}"
    command = f"spec convert inspect {quoted(written[0])}"
    more = {"shards": len(written), "shard_bytes": sizes}
    finish(output, written, what, command, as_json=out.json, **more)
