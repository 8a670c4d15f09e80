"""Gemma 4's assistant through the CUDA kernels: the same drafts as on the reference backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_sources import if_backend_changed
from support.assistant_files import ARCH, Kind, write_assistant
from support.running import random_tokens
from support.vocab import N_VOCAB

from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import SpecOptions

pytestmark = if_backend_changed
LIKELY = (40, 200, 333)


@pytest.mark.parametrize("family", ["gemma4-inputs", "gemma4-keys"])
def test_drafts_and_text(family: str, tiny: Callable[..., Any], tmp_path: Path, shim: None) -> None:
    """Of a text of few tokens, longer than the window."""
    target = tiny(family, quantise="Q8_0").path
    draft = write_assistant(tmp_path / "a.gguf", target, Kind(likely=LIKELY), seed=2).path
    bias = tuple((token, 60.0) for token in LIKELY)
    params = GenerateParams(
        SamplingParams(temperature=0.0, logit_bias=bias), max_tokens=16, ignore_eos=True
    )
    spec = SpecOptions(types=(ARCH,), draft_n_max=3, fixed=True)
    prompt, found = random_tokens(12, seed=4, n_vocab=N_VOCAB), []
    for device in ("cuda", "torch"):
        with load_runtime(target, device, n_ctx=64, spec=spec, draft=draft) as runtime:
            tokens = [event.token for event in runtime.generate(prompt, params)]
            stats = runtime.stats
            found.append((tokens, stats.draft_n, stats.draft_n_accepted))
            plain = [event.token for event in runtime.generate(prompt, params, plainly=True)]
            assert tokens == plain
    assert found[0] == found[1]
    assert found[0][2] > 0
