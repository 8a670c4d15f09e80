"""`spec convert split`: a GGUF into shards."""

from __future__ import annotations

from pathlib import Path

from ..flags import REQUIRED, argument, flag, flag_group, takes_flags
from ..output import Output
from ..shared_options import VoiceOptions
from .writing import FORCE, JSON, finish, quoted, read_size, size, writing


@flag_group("Files")
class SplitFiles:
    file: Path = argument("FILE", "GGUF; one in shards is divided anew.")
    split_max_size: str = flag(
        "--split-max-size SIZE",
        "Tensor data in a shard: 500M, 4G (10^9 bytes, as llama.cpp has it) or 4GiB.",
        REQUIRED,
    )


@flag_group("Output")
class SplitOutput:
    output: str = flag("--output -o PREFIX", "Shards are PREFIX-00001-of-0000N.gguf.", REQUIRED)
    force: bool = FORCE
    json: bool = JSON


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
