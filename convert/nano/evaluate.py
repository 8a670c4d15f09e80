"""`python -m nextn.convert.nano.evaluate FILE`: the figures of `docs/nano.md`, by our runtime."""

from __future__ import annotations

import argparse
import logging
import lzma
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ... import core
from ...core.backend.layers import Floats
from ...core.generation import EOS, GenerateParams
from ...core.runtime import Runtime
from ...core.sampling.params import SamplingParams
from ...core.speculation.options import SpecOptions
from . import held_out, judge
from .corpus import default_libraries, first_prompts
from .judge import Completion
from .one_line_errors import in_one_line

WINDOW, STRIDE = 1024, 512  # tokens; all but a file's first have at least STRIDE before them
N_WRITTEN = 64
N_SEEDS = 5

_log = logging.getLogger("nextn.convert.nano")
GREEDY = SamplingParams(temperature=0.0)
N_DRAFT = 3
MTP_SPEC = SpecOptions(types=("mtp",), draft_n_max=N_DRAFT, fixed=True)
NO_SPEC = SpecOptions(types=("none",))


def bits_per_byte(runtime: Runtime, texts: Iterable[str]) -> float:
    bits, n_bytes = 0.0, 0
    for text in texts:
        bits += _bits(runtime, runtime.tokenizer.encode(text, parse_special=False))
        n_bytes += len(text.encode())
    return bits / n_bytes


def _bits(runtime: Runtime, tokens: Sequence[int]) -> float:
    """The bits of all tokens behind BOS, which is free; without BOS all first tokens are equally
    likely."""
    has_bos = runtime.tokenizer.add_bos
    total, scored = 0.0 if has_bos else float(np.log2(runtime.n_vocab)), 1
    for end in _window_ends(len(tokens)):
        start = max(0, end - WINDOW)
        logits = runtime.logits(tokens[start:end])[scored - 1 - start : end - 1 - start]
        total -= float(_log2_of(logits, tokens[scored:end]).sum())
        scored = end
    return total


def _window_ends(n: int) -> Iterator[int]:
    end = min(n, WINDOW)
    while n > 1:
        yield end
        if end == n:
            return
        end = min(n, end + STRIDE)


def _log2_of(logits: Floats, tokens: Sequence[int]) -> Floats:
    wide = logits.astype(np.float64)
    wide -= wide.max(1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(1, keepdims=True))
    return np.asarray(wide[np.arange(len(tokens)), list(tokens)] / np.log(2))


def xz_bits_per_byte(texts: Iterable[str]) -> float:
    data = b"".join(text.encode() for text in texts)
    return 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) / len(data)


def usual_sampling(runtime: Runtime, seed: int) -> SamplingParams:
    """The file's own."""
    return replace(SamplingParams(seed=seed), **runtime.recommended_sampling)


def complete(runtime: Runtime, prompt: str, sampling: SamplingParams) -> Completion:
    events = list(runtime.generate(prompt, GenerateParams(sampling, max_tokens=N_WRITTEN)))
    ended = events[-1].stop_reason == EOS
    n_tokens = sum(event.token >= 0 for event in events)
    return Completion(prompt, "".join(event.text for event in events), ended, n_tokens)


class DraftCounts:
    """The share of drafts that are right up to each place, over several texts."""

    def __init__(self) -> None:
        self._accepted, self._drafted = np.zeros((2, N_DRAFT))

    def add(self, runtime: Runtime) -> None:
        """The counts of the last text."""
        stats = runtime.stats
        for total, counts in (
            (self._accepted, stats.accept_per_pos), (self._drafted, stats.draft_per_pos)
        ):  # fmt: skip
            total += np.pad(counts, (0, N_DRAFT - len(counts)))

    @property
    def rates(self) -> list[float]:
        return [float(rate) for rate in self._accepted / np.maximum(self._drafted, 1)]

    @property
    def length(self) -> float:
        return 1 + sum(self.rates)


def write(
    runtime: Runtime, prompt: Sequence[int], n: int, sampling: SamplingParams = GREEDY
) -> list[int]:
    params = GenerateParams(sampling, max_tokens=n)
    return [event.token for event in runtime.generate(prompt, params) if event.token >= 0]


def report(path: Path, library: Path, device: str) -> Iterator[str]:
    texts = [file.text for file in held_out.load(library)]
    yield f"file size | {path.stat().st_size / 1e6:.2f} MB"
    yield f"held-out files | {len(texts)}, {sum(len(t.encode()) for t in texts)} bytes"
    with core.load(path, device) as runtime:
        yield f"bits per byte | {bits_per_byte(runtime, texts):.3f}"
        yield f"bits per byte of xz -9e, all files as one | {xz_bits_per_byte(texts):.3f}"
        has_head = bool(runtime.model.nextn)
    with core.load(path, device, spec=MTP_SPEC if has_head else NO_SPEC) as runtime:
        yield from report_prompts(runtime, has_head)


def report_prompts(runtime: Runtime, has_head: bool) -> Iterator[str]:
    """Speculation changes no text, so one run gives texts and counts of drafts."""
    counts, sampled = DraftCounts(), []
    for seed in range(N_SEEDS):
        for prompt in first_prompts():
            made = complete(runtime, prompt, usual_sampling(runtime, seed))
            sampled.append(made)
            if not judge.repeats(made.text):
                counts.add(runtime)
    yield f"everyday prompts, the file's sampling, {N_SEEDS} seeds | {shares(sampled)}"
    greedy = [complete(runtime, prompt, GREEDY) for prompt in first_prompts()]
    yield f"everyday prompts, greedy | {shares(greedy)}"
    if has_head:
        listed = ", ".join(f"{rate:.1%}" for rate in counts.rates)
        yield f"MTP at the file's sampling: right up to token 1, 2, 3 | {listed}"
        yield f"MTP acceptance length, {N_DRAFT} drafted | {counts.length:.2f}"
    for made in [*sampled, *greedy]:
        verdict = "parses" if judge.is_python(made) else "DOES NOT PARSE"
        _log.debug("--- %s\n%s[|]%s", verdict, made.prompt, made.text)


def shares(made: list[Completion]) -> str:
    found = judge.shares(made)
    return (
        f"{found.parsing:.1%} parse, {found.short:.1%} end before 8 tokens, "
        f"{found.repeating:.1%} repeat a line"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--library", type=Path, default=default_libraries()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--verbose", action="store_true", help="show the texts too")
    options = parser.parse_args(arguments)
    level = logging.DEBUG if options.verbose else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    _log.setLevel(level)
    for line in report(options.file, options.library, options.device):
        _log.info("%s", line)


if __name__ == "__main__":
    in_one_line("python -m nextn.convert.nano.evaluate", main)
