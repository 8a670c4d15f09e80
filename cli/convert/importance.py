"""`spec convert imatrix`: how much each column of a model's matrices matters, over a text."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from ...core.errors import ConfigError
from ..flags import REQUIRED, argument, flag, flag_group, takes_flags
from ..shared_options import VoiceOptions
from .measure import read_text, reading
from .writing import FORCE, JSON, duration, ended_in_order, finish, quoted

if TYPE_CHECKING:
    from ...convert.measure.input_squares import InputSquares

_TORCH: Final = re.compile(r"torch(?::(.+))?")


@flag_group("Files")
class ImportanceFiles:
    file: Path = argument("FILE", "Model, GGUF; of high precision, such as bf16, if there is one.")
    out: Path = flag("--output -o FILE", "Importance matrix to write, GGUF.", REQUIRED)
    force: bool = FORCE


@flag_group("Text")
class ImportanceText:
    text: Path | None = flag(
        "--text -f FILE",
        "Text that the model reads, UTF-8, of the kind that it will be used for; a built-in one "
        "of prose, code, markup and talk if not given.",
    )
    ctx_size: int = flag("--ctx-size -c N", "Tokens of a chunk.", 512, min=8)
    chunks: int | None = flag("--chunks N", "Maximum number of chunks.", min=1)
    process_output: bool = flag(
        "--process-output", "The output matrix too, where the file has one of its own."
    )


@flag_group("Running")
class ImportancePlace:
    device: str = flag("--device NAME", "torch or torch:<torch device>.", "torch")
    json: bool = JSON


@takes_flags
def imatrix(
    files: ImportanceFiles, text: ImportanceText, place: ImportancePlace, voice: VoiceOptions
) -> None:
    """Write how much each column of a model's matrices matters, for quantize.

    spec convert imatrix model-bf16.gguf -o imatrix.gguf --text mine.txt

    spec convert quantize model-bf16.gguf -o small.gguf --type IQ4_XS --imatrix imatrix.gguf

    The file is that of llama-imatrix. The model is computed in float32 (pip install
    'nextn[torch]'), and its weights stay as they are in the file.
    """
    from ...convert.files.output_file import OutputFile, check_output, write
    from ...convert.measure.importance_run import observing_backend, read_squares
    from ...convert.measure.text_chunks import cut, read_tokenizer
    from ...convert.quantize.imatrix import importance_keys, importance_tensors
    from ...core.gguf.reader import open_gguf
    from ...core.model_names import find_model

    output, began = voice.console(), time.perf_counter()
    named = _TORCH.fullmatch(place.device)
    if named is None:
        raise typer.BadParameter(f"--device {place.device}: torch or torch:<torch device>")
    path, words = find_model(files.file), read_text(text.text)
    target = OutputFile(files.out, overwrite=files.force)
    chunks = cut(words, read_tokenizer(path, text.ctx_size), text.ctx_size, text.chunks)
    with ended_in_order(), open_gguf(path) as file:
        check_output(target, file.paths, 0)
        if text.process_output and "output.weight" not in file.tensors:
            raise ConfigError(f"--process-output: {file.label} has no output matrix of its own")
        backend = observing_backend(named[1] or "cpu")
        with reading(output, "reading") as progress:
            squares = read_squares(file, backend, chunks, progress, with_output=text.process_output)
        name = "built-in" if text.text is None else str(text.text)
        keys = importance_keys(len(chunks), text.ctx_size, name)
        paths = write(
            target, keys, importance_tensors(squares.sums, squares.counts), (), inputs=file.paths
        )
    for line in unread_experts(squares):
        output.remark(line)
    seconds = duration(time.perf_counter() - began)
    what = f"{len(squares.sums)} tensors, {len(chunks)} chunks of {text.ctx_size} tokens, {seconds}"
    command = f"spec convert quantize {quoted(path)} --imatrix {quoted(files.out)} -o ..."
    finish(output, paths, what, command, as_json=place.json, chunks=len(chunks))


def unread_experts(squares: InputSquares) -> list[str]:
    """A line for each tensor whose experts did not all read a row."""
    found = []
    for name, counts in sorted(squares.counts.items()):
        n_unread = int((counts == 0).sum())
        if n_unread and "_down_exps" in name:
            found.append(
                f"note: {n_unread} of {len(counts)} experts of {name.partition('.ffn_')[0]} read "
                "nothing: their columns count alike; a longer text (--text, --chunks) helps"
            )
    return found
