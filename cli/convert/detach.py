"""`spec convert detach`: a GGUF without its MTP head."""

from __future__ import annotations

from ..flags import takes_flags
from ..output import Output
from ..shared_options import VoiceOptions
from .writing import HeadedFileOptions, OutOptions, finish, quoted, size, writing


@takes_flags
def detach(files: HeadedFileOptions, out: OutOptions, voice: VoiceOptions) -> None:
    """Write a GGUF without its MTP head: smaller, and as if converted without it.

    spec convert detach model-mtp.gguf -o model-trunk.gguf
    """
    output = Output(quiet=voice.quiet, verbose=voice.verbose)

    from ...convert.files.output_file import OutputFile
    from ...convert.files.recombine import detach as detach_head
    from ...core.gguf.reader import open_gguf

    with open_gguf(files.file) as file, writing(output, out.output) as progress:
        (written,), saved = detach_head(file, OutputFile(out.output, out.force), progress)
    what = f"without its MTP head, {size(written.stat().st_size)}, {size(saved)} less"
    command = f"spec convert inspect {quoted(written)}"
    finish(output, [written], what, command, as_json=out.json, head_bytes=saved)
