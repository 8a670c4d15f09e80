"""`spec convert extract`, `detach`, `merge` and `split`: a GGUF of another's tensors, unchanged."""

from __future__ import annotations

from pathlib import Path

from ..flags import REQUIRED, argument, flag, flag_group, takes_flags
from ..shared_options import VoiceOptions
from .writing import (
    FORCE,
    JSON,
    drafting_command,
    finish,
    quoted,
    read_size,
    size,
    writing,
)


@flag_group("Files")
class HeadedFileOptions:
    file: Path = argument("FILE", "GGUF with its MTP head.")


@flag_group("Files")
class ShardOptions:
    shards: list[Path] = argument("SHARDS", "One shard, which finds the others, or all of them.")


@flag_group("Files")
class SplitOptions:
    file: Path = argument("FILE", "GGUF; one in shards is divided anew.")
    split_max_size: str = flag(
        "--split-max-size SIZE",
        "Tensor data in a shard: 500M, 4G (10^9 bytes, as llama.cpp has it) or 4GiB.",
        REQUIRED,
    )


@flag_group("Output")
class OutOptions:
    output: Path = flag("--output -o OUT", "Output file.", REQUIRED)
    force: bool = FORCE
    json: bool = JSON


@flag_group("Output")
class ExtractOutput:
    output: Path | None = flag("--output -o OUT", "Output file; mtp-FILE by default.")
    force: bool = FORCE
    json: bool = JSON


@flag_group("Output")
class ShardOutput:
    output: str = flag("--output -o PREFIX", "Shards are PREFIX-00001-of-0000N.gguf.", REQUIRED)
    force: bool = FORCE
    json: bool = JSON


@takes_flags
def extract(files: HeadedFileOptions, out: ExtractOutput, voice: VoiceOptions) -> None:
    """Write the MTP head of a GGUF into a file of its own, for -md here and in llama.cpp.

    spec convert extract Qwen3.6-27B-Q4_K_M.gguf -o mtp-Qwen3.6-27B.gguf
    """
    from ...convert.files import recombine
    from ...convert.files.output_file import OutputFile
    from ...core.gguf.reader import open_gguf

    output = voice.console()
    path = out.output or Path(f"mtp-{files.file.name}")
    with open_gguf(files.file) as file, writing(output, path) as progress:
        architecture = file.metadata.architecture
        (written,), n_heads = recombine.extract(file, OutputFile(path, out.force), progress)
    what = f"{n_heads} MTP head{'s' * (n_heads > 1)}, {size(written.stat().st_size)}"
    command = drafting_command(files.file, written)
    more = {"architecture": architecture, "heads": n_heads}
    finish(output, [written], what, command, as_json=out.json, **more)


@takes_flags
def detach(files: HeadedFileOptions, out: OutOptions, voice: VoiceOptions) -> None:
    """Write a GGUF without its MTP head: smaller, and as if converted without it.

    spec convert detach model-mtp.gguf -o model-trunk.gguf
    """
    from ...convert.files import recombine
    from ...convert.files.output_file import OutputFile
    from ...core.gguf.reader import open_gguf

    output = voice.console()
    with open_gguf(files.file) as file, writing(output, out.output) as progress:
        (written,), saved = recombine.detach(file, OutputFile(out.output, out.force), progress)
    what = f"without its MTP head, {size(written.stat().st_size)}, {size(saved)} less"
    command = f"spec convert inspect {quoted(written)}"
    finish(output, [written], what, command, as_json=out.json, head_bytes=saved)


@takes_flags
def merge(files: ShardOptions, out: OutOptions, voice: VoiceOptions) -> None:
    """Make one file of a GGUF in shards.

    spec convert merge model-00001-of-00003.gguf -o model.gguf
    """
    from ...convert.files import recombine
    from ...convert.files.output_file import OutputFile

    output = voice.console()
    with recombine.open_shards(files.shards) as file, writing(output, out.output) as progress:
        n_shards = len(file.paths)
        (written,) = recombine.merge(file, OutputFile(out.output, out.force), progress)
    what = f"{n_shards} shards in one file, {size(written.stat().st_size)}"
    command = f"spec convert inspect {quoted(written)}"
    finish(output, [written], what, command, as_json=out.json, merged_shards=n_shards)


@takes_flags
def split(files: SplitOptions, out: ShardOutput, voice: VoiceOptions) -> None:
    """Make shards of a GGUF, with llama.cpp's names and keys.

    spec convert split model.gguf -o model --split-max-size 4G
    """
    from ...convert.files import recombine
    from ...convert.files.output_file import OutputFile, shard_prefix
    from ...core.gguf.reader import open_gguf

    output = voice.console()
    max_bytes = read_size(files.split_max_size)
    path = shard_prefix(out.output)
    with open_gguf(files.file) as file, writing(output, path) as progress:
        written = recombine.split(file, OutputFile(path, out.force, max_bytes), progress)
    sizes = [path.stat().st_size for path in written]
    what = f"{len(written)} shards, {size(sum(sizes))}"
    command = f"spec convert inspect {quoted(written[0])}"
    more = {"shards": len(written), "shard_bytes": sizes}
    finish(output, written, what, command, as_json=out.json, **more)
