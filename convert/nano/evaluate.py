"""`python -m nextn.convert.nano.evaluate FILE`: the figures of `docs/nano.md`, by our runtime."""

from __future__ import annotations

import argparse
import ast
import logging
import lzma
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ... import core
from ...core.backend.layers import Floats
from ...core.generation import GenerateParams
from ...core.runtime import Runtime
from ...core.sampling.params import SamplingParams
from ...core.speculation.options import SpecOptions
from . import held_out
from .corpus import SourceFile, default_libraries
from .one_line_errors import in_one_line

WINDOW, STRIDE = 1024, 512  # tokens; all but a file's first have at least STRIDE before them
N_PROMPTS, N_WRITTEN = 20, 128
N_BODY = 200  # tokens of a completed function
N_SEEDS = 5
TEMPERATURE = 0.5  # of completed functions; chosen on other headers than those that are counted

_log = logging.getLogger("nextn.convert.nano")
GREEDY = SamplingParams(temperature=0.0)
N_DRAFT = 3
MTP_SPEC = SpecOptions(types=("mtp",), draft_n_max=N_DRAFT, fixed=True)


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


def accept_rates(runtime: Runtime, files: list[SourceFile]) -> list[float]:
    """The share of drafts that are right up to each place, in greedy texts."""
    accepted, drafted = np.zeros((2, N_DRAFT))
    for site in held_out.sites(files, N_PROMPTS, methods=True):
        prompt = runtime.tokenizer.encode(f"{site.before}{site.header}", parse_special=False)
        write(runtime, prompt, N_WRITTEN)
        stats = runtime.stats
        accepted += np.pad(stats.accept_per_pos, (0, N_DRAFT - len(stats.accept_per_pos)))
        drafted += np.pad(stats.draft_per_pos, (0, N_DRAFT - len(stats.draft_per_pos)))
    return [float(rate) for rate in accepted / drafted]


def write(
    runtime: Runtime, prompt: Sequence[int], n: int, sampling: SamplingParams = GREEDY
) -> list[int]:
    params = GenerateParams(sampling, max_tokens=n)
    return [event.token for event in runtime.generate(prompt, params) if event.token >= 0]


def completions(runtime: Runtime, headers: Iterable[str], seed: int) -> Iterator[tuple[str, bool]]:
    """Functions written from their headers alone; and whether they parse."""
    for header in headers:
        sampling = SamplingParams(temperature=TEMPERATURE, seed=seed)
        written = write(runtime, runtime.tokenizer.encode(header), N_BODY, sampling)
        source = body_of(header, runtime.tokenizer.decode(written), len(written) == N_BODY)
        yield source, parses(source)


def body_of(header: str, text: str, cut_off: bool) -> str:
    """The function alone: up to the first line at the left margin, whole lines only if cut off."""
    lines = text.split("\n")
    if cut_off:
        lines.pop()
    kept = [header + lines[0]] if lines else [header]
    for line in lines[1:]:
        if line and not line[0].isspace():
            break
        kept.append(line)
    return "\n".join(kept).rstrip() + "\n"


def parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return True


def report(path: Path, library: Path, device: str) -> Iterator[str]:
    files = held_out.load(library)
    texts = [file.text for file in files]
    yield f"file size | {path.stat().st_size / 1e6:.2f} MB"
    yield f"held-out files | {len(files)}, {sum(len(t.encode()) for t in texts)} bytes"
    with core.load(path, device) as runtime:
        yield f"bits per byte | {bits_per_byte(runtime, texts):.3f}"
        yield f"bits per byte of xz -9e, all files as one | {xz_bits_per_byte(texts):.3f}"
        if runtime.model.nextn:
            with core.load(path, device, spec=MTP_SPEC) as drafting:
                rates = accept_rates(drafting, files)
            listed = ", ".join(f"{rate:.1%}" for rate in rates)
            yield f"MTP, greedy: drafts right up to token 1, 2, 3 | {listed}"
            yield f"MTP acceptance length, {N_DRAFT} drafted | {1 + sum(rates):.2f}"
        headers = [site.header for site in held_out.sites(files, N_PROMPTS, methods=False)]
        made = [one for seed in range(N_SEEDS) for one in completions(runtime, headers, seed)]
        share = sum(ok for _, ok in made) / len(made)
        yield f"completed headers that parse, {N_SEEDS} seeds | {share:.0%} of {len(headers)}"
        for source, ok in made:
            _log.debug("%s\n%s", "parses" if ok else "DOES NOT PARSE", source)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--library", type=Path, default=default_libraries()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--verbose", action="store_true", help="show the completions too")
    options = parser.parse_args(arguments)
    level = logging.DEBUG if options.verbose else logging.INFO
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    _log.setLevel(level)
    for line in report(options.file, options.library, options.device):
        _log.info("%s", line)


if __name__ == "__main__":
    in_one_line("python -m nextn.convert.nano.evaluate", main)
