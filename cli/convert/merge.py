"""`spec convert merge`: shards of a GGUF into one file."""

from __future__ import annotations

from pathlib import Path

from ..flags import argument, flag_group, takes_flags
from ..output import Output
from ..shared_options import VoiceOptions
from .writing import OutOptions, finish, quoted, size, writing


@flag_group("Files")
class ShardOptions:
    shards: list[Path] = argument("SHARDS", "One shard, which finds the others, or all of them.")


@takes_flags
def merge(files: ShardOptions, out: OutOptions, voice: VoiceOptions) -> None:
    """Make one file of a GGUF in shards.

    spec convert merge model-00001-of-00003.gguf -o model.gguf
    """
    output = Output(quiet=voice.quiet, verbose=voice.verbose)

    from ...convert.files.output_file import OutputFile
    from ...convert.files.recombine import merge as merge_shards
    from ...convert.files.recombine import open_shards

    with open_shards(files.shards) as file, writing(output, out.output) as progress:
        n_shards = len(file.paths)
        (written,) = merge_shards(file, OutputFile(out.output, out.force), progress)
    what = f"{n_shards} shards in one file, {size(written.stat().st_size)}"
    command = f"spec convert inspect {quoted(written)}"
    finish(output, [written], what, command, as_json=out.json, merged_shards=n_shards)
