"""`python -m nextn.convert.train.draft_figures FILE...`: acceptance lengths of the bundled model's
drafters, alone and spliced with n-grams. Only counts, which no other program's work changes."""

from __future__ import annotations

import argparse
import ast
import hashlib
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from ... import core
from ...core.generation import GenerateParams
from ...core.gguf.reader import open_gguf
from ...core.runtime import Runtime
from ...core.sampling.params import SamplingParams
from ...core.speculation.options import SpecOptions
from .one_line_errors import in_one_line
from .python_sources import SourceFile, default_library, first_prompts, is_held_out, read_library

N_WRITTEN = 64
N_SEEDS = 3
N_CTX = 1024
N_SITES = 40
PROMPT_LINES = 30  # in front of a function, as context
GREEDY = SamplingParams(temperature=0.0)
NGRAMS = "ngram-mod"
N_DRAFT = {"mtp": 3, "eagle3": 3, "dflash": 5}

_log = logging.getLogger("nextn.convert.train")


class Measured(NamedTuple):
    """Over several texts."""

    tokens: int  # without the first of a text, which a step of the prompt makes
    accepted: int

    @property
    def length(self) -> float:
        """Tokens that come out of a step: the target's own, and accepted ones."""
        return self.tokens / (self.tokens - self.accepted)


def acceptance(
    runtime: Runtime, prompts: Sequence[str], samplings: Sequence[SamplingParams]
) -> Measured:
    tokens = accepted = 0
    for sampling in samplings:
        params = GenerateParams(sampling, max_tokens=N_WRITTEN)
        for prompt in prompts:
            events = list(runtime.generate(prompt, params))
            tokens += sum(event.token >= 0 for event in events) - 1
            accepted += runtime.stats.draft_n_accepted
    return Measured(tokens, accepted)


def usual_sampling(runtime: Runtime, seed: int) -> SamplingParams:
    """The file's own."""
    return replace(SamplingParams(seed=seed), **runtime.recommended_sampling)


def load(types: Sequence[str], draft: Path | None, *, fixed: bool = True) -> Runtime:
    """The bundled model with these drafters."""
    n = max((N_DRAFT.get(name, 0) for name in types), default=0) or max(N_DRAFT.values())
    spec = SpecOptions(types=tuple(types), draft_n_max=n, fixed=fixed)
    return core.load(None, "cpu", n_ctx=N_CTX, threads=1, draft=draft, spec=spec)


def held_out_prompts(library: Path) -> list[str]:
    """Functions of files that neither the model nor its drafters were trained on, with what is
    before them."""
    files = [file for file in read_library(library) if is_held_out(file.name)]
    found = [labelled for file in files for labelled in _functions(file)]
    # Scattered over the files by a hash.
    found.sort(key=lambda labelled: hashlib.sha256(labelled[0].encode()).digest())
    return [prompt for _, prompt in found[:N_SITES]]


def _functions(file: SourceFile) -> Iterator[tuple[str, str]]:
    """A label, and the header with the lines before it."""
    lines = file.text.splitlines()
    for node in ast.walk(ast.parse(file.text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        header = lines[node.lineno - 1]
        body = (node.end_lineno or 0) - node.lineno
        if re.fullmatch(r"\s*def .*\):", header) and body >= 2:
            first = max(0, node.lineno - 1 - PROMPT_LINES)
            before = "".join(f"{line}\n" for line in lines[first : node.lineno - 1])
            yield f"{file.name}:{node.name}:{node.lineno}", before + header


def report(drafts: Sequence[Path], library: Path) -> Iterator[str]:
    named: list[tuple[str, Path | None]] = [("mtp", None)]
    for path in drafts:
        with open_gguf(path) as file:
            named.append((file.metadata.architecture, path))
    settings: list[tuple[list[str], Path | None, bool]] = [([NGRAMS], None, True)]
    for name, file_of in named:
        spliced = [NGRAMS, name]
        settings += [([name], file_of, True), (spliced, file_of, True), (spliced, file_of, False)]
    kinds = {"first": first_prompts(), "held out": held_out_prompts(library)}
    for types, draft, fixed in settings:
        lengths = []
        for prompts in kinds.values():
            with load(types, draft, fixed=fixed) as runtime:
                usual = [usual_sampling(runtime, seed) for seed in range(N_SEEDS)]
                lengths += [acceptance(runtime, prompts, each).length for each in (usual, [GREEDY])]
        listed = " | ".join(f"{length:.2f}" for length in lengths)
        yield f"{','.join(types)} | {'fixed' if fixed else 'controller'} | {listed}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafts", type=Path, nargs="*", help="GGUF files of drafters")
    parser.add_argument("--library", type=Path, default=default_library())
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    _log.setLevel(logging.INFO)
    _log.info("drafters | how much | first prompts: sampled | greedy | held out: sampled | greedy")
    for line in report(options.drafts, options.library):
        _log.info("%s", line)


if __name__ == "__main__":
    in_one_line("python -m nextn.convert.train.draft_figures", main)
