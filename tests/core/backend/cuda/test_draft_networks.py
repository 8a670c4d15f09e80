"""EAGLE3 and DFlash through the CUDA kernels: the reference's drafts, and the same text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_sources import if_backend_changed
from support.dflash_files import Kind as DFlashKind
from support.dflash_files import write_dflash
from support.eagle3_files import Kind, write_eagle3
from support.running import random_tokens
from support.vocab import N_VOCAB

from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import SpecOptions

pytestmark = if_backend_changed

WRITERS: dict[str, Callable[[Path, Path], Any]] = {
    "eagle3": lambda path, target: write_eagle3(
        path, target, Kind(n_head=3, norm_before_residual=True)
    ),
    "eagle3 of latents": lambda path, target: write_eagle3(
        path, target, Kind(n_head=3, is_latent=True)
    ),
    "dflash": lambda path, target: write_dflash(path, target, DFlashKind(n_head=3, window=9)),
    "dflash2": lambda path, target: write_dflash(
        path, target, DFlashKind(n_head=8, kernel=3, top_k=4)
    ),
    "dspark": lambda path, target: write_dflash(
        path, target, DFlashKind(n_head=3, markov=True, confidence=True, gemma=True)
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_drafts_and_text(name: str, tiny: Callable[..., Any], tmp_path: Path, shim: None) -> None:
    """Of a text of few tokens, which a head that knows only these often hits."""
    target = tiny("qwen3", quantise="Q8_0").path
    written = WRITERS[name](tmp_path / "e.gguf", target)
    bias = tuple((int(token), 60.0) for token in sorted(written.d2t))
    params = GenerateParams(
        SamplingParams(temperature=0.0, logit_bias=bias), max_tokens=24, ignore_eos=True
    )
    kind = "eagle3" if name.startswith("eagle3") else "dflash"
    spec = SpecOptions(types=(kind,), draft_n_max=3, fixed=True)
    prompt, found = random_tokens(12, seed=4, n_vocab=N_VOCAB), []
    for device in ("cuda", "torch"):
        with load_runtime(target, device, n_ctx=64, spec=spec, draft=written.path) as runtime:
            tokens = [event.token for event in runtime.generate(prompt, params)]
            stats = runtime.stats
            found.append((tokens, stats.draft_n, stats.draft_n_accepted))
            plain = [event.token for event in runtime.generate(prompt, params, plainly=True)]
            assert tokens == plain
    assert found[0] == found[1]
    assert found[0][2] > 0
