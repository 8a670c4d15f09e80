"""`spec convert extract`: the MTP head of a GGUF in a file of its own."""

from __future__ import annotations

from pathlib import Path

from ..flags import flag, flag_group, takes_flags
from ..output import Output
from ..shared_options import VoiceOptions
from .writing import (
    FORCE,
    JSON,
    HeadedFileOptions,
    drafting_command,
    finish,
    size,
    writing,
)


@flag_group("Output")
class ExtractOutput:
    output: Path | None = flag("--output -o OUT", "Output file; mtp-FILE by default.")
    force: bool = FORCE
    json: bool = JSON


@takes_flags
def extract(files: HeadedFileOptions, out: ExtractOutput, voice: VoiceOptions) -> None:
    """Write the MTP head of a GGUF into a file of its own, for -md here and in llama.cpp.

    spec convert extract Qwen3.6-27B-Q4_K_M.gguf -o mtp-Qwen3.6-27B.gguf
    """
    output = Output(quiet=voice.quiet, verbose=voice.verbose)

    from ...convert.files.output_file import OutputFile
    from ...convert.files.recombine import extract as extract_head
    from ...core.gguf.reader import open_gguf

    path = out.output or Path(f"mtp-{files.file.name}")
    with open_gguf(files.file) as file, writing(output, path) as progress:
        architecture = file.metadata.architecture
        (written,), n_heads = extract_head(file, OutputFile(path, out.force), progress)
    what = f"{n_heads} MTP head{'s' * (n_heads > 1)}, {size(written.stat().st_size)}"
    command = drafting_command(architecture, files.file, written)
    more = {"architecture": architecture, "heads": n_heads}
    finish(output, [written], what, command, as_json=out.json, **more)
