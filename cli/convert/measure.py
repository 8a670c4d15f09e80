"""`spec convert measure`: how far a model is from another, over a text that both read."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ...core.errors import ConfigError
from ..bench_output import MISSED, say_gates
from ..bench_reading import share
from ..console import Console
from ..flags import REQUIRED, argument, flag, flag_group, takes_flags
from ..prompt_source import read_file
from ..shared_options import VoiceOptions
from .measure_report import Measurement, fidelity_lines, measurement_record
from .measured_models import GivenModel, as_gguf, load, read_both_tokenizers
from .writing import THREADS, duration, ended_in_order

if TYPE_CHECKING:
    from ...convert.measure.side_by_side import Progress


@flag_group("Models")
class MeasuredModels:
    file: Path = argument("FILE", "Measured model: a GGUF, or the folder of a checkpoint.")
    against: Path = flag(
        "--against FILE",
        "Base to compare with, of the same tokenizer: what FILE was made from, say, or FILE "
        "itself on another device.",
        REQUIRED,
    )
    device: str = flag("--device NAME", "Device of the measured model, as in generate.", "cpu")
    against_device: str | None = flag(
        "--against-device NAME",
        "Device of the base; that of the measured model if not given. torch is float32.",
    )
    threads: int | None = THREADS


@flag_group("Text")
class MeasuredText:
    text: Path | None = flag(
        "--text FILE",
        "Text that both read, UTF-8; a built-in one of prose, code, markup and talk if not given.",
    )
    ctx_size: int = flag(
        "--ctx-size -c N",
        "Tokens of a chunk; its second half is scored, as in llama-perplexity.",
        512,
        min=8,
    )
    chunks: int | None = flag("--chunks N", "Maximum number of chunks.", min=1)


@flag_group("Gates (exit 3 if one is missed)")
class FidelityLimits:
    max_kl: float | None = flag("--max-kl X", "Maximum mean KL divergence, in nats.", min=0.0)
    min_top1: str | None = flag(
        "--min-top1 P", "Minimum share of tokens with the same top token, 0.97 or 97%."
    )


@flag_group("Output")
class MeasureOutput:
    json: bool = flag("--json", "One JSON object instead of text.")


@takes_flags
def measure(
    models: MeasuredModels,
    text: MeasuredText,
    limits: FidelityLimits,
    result: MeasureOutput,
    voice: VoiceOptions,
) -> None:
    """Measure how far a model is from the one it was made from.

    spec convert measure model-Q4_K_M.gguf --against model-bf16.gguf

    Both read the same text. Perplexities, KL divergence and agreement on the likeliest token are
    those of llama-perplexity --kl-divergence, without a file of logits between.
    """
    output = voice.console()
    devices = models.device, models.against_device or models.device
    if models.threads is not None and "cpu" not in devices:
        raise typer.BadParameter(f"--threads is for --device cpu, not {devices[0]}")
    min_top1 = None if limits.min_top1 is None else share(limits.min_top1, "--min-top1")

    from ...convert.measure.fidelity_gates import judge_fidelity

    words = read_text(text.text)
    with ended_in_order(), ExitStack() as ends:
        files = dict.fromkeys((models.file, models.against))  # the same one may be given twice
        made = {path: as_gguf(path, output, ends) for path in files}
        given = [made[models.file], made[models.against]]
        found = compare(given, devices, words, text, models.threads, output)
    gates = judge_fidelity(found.fidelity, max_kl=limits.max_kl, min_top1=min_top1)
    if result.json:
        output.line(json.dumps(measurement_record(found, gates), ensure_ascii=False))
    else:
        for line in fidelity_lines(found):
            output.line(line)
    if say_gates(gates, output):
        raise typer.Exit(MISSED)


def read_text(path: Path | None) -> str:
    from ...convert.measure.sample_text import sample_text

    if path is None:
        return sample_text()
    text = read_file(path)
    if not text.strip():
        raise ConfigError(f"{path}: there is no text in it")
    return text


def compare(
    given: list[GivenModel],
    devices: tuple[str, str],
    words: str,
    text: MeasuredText,
    threads: int | None,
    output: Console,
) -> Measurement:
    """Whatever can be wrong with files and text is found before weights are read."""
    from ...convert.measure.fidelity import summarise
    from ...convert.measure.side_by_side import score
    from ...convert.measure.text_chunks import cut

    began = time.perf_counter()
    base_tokenizer = read_both_tokenizers(given, text.ctx_size, output)
    chunks = cut(words, base_tokenizer, text.ctx_size, text.chunks)
    with ExitStack() as ends:
        runtimes = [
            ends.enter_context(load(each, device, text.ctx_size, threads, output))
            for each, device in zip(given, devices, strict=True)
        ]
        with reading(output) as progress:
            tokens = score(runtimes[0], runtimes[1], chunks, progress)
        measured, base = (
            each.facts(runtime) for each, runtime in zip(given, runtimes, strict=True)
        )
    name = "built-in" if text.text is None else str(text.text)
    seconds = time.perf_counter() - began
    return Measurement(measured, base, name, text.ctx_size, summarise(tokens), seconds)


@contextmanager
def reading(output: Console, word: str = "measuring") -> Iterator[Progress]:
    """Progress with the time left."""
    began = time.perf_counter()

    def progress(done: int, total: int) -> None:
        stage = word
        if done and sys.stderr.isatty():
            per_chunk = (time.perf_counter() - began) / done
            stage += f", {duration((total - done) * per_chunk)} left"
        output.progress(stage, done / total)

    with output.cleared():
        yield progress
