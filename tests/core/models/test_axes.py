"""Rows of images turn by time, height and width: against `transformers`, and as prompts are cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from support.checkpoints import build_checkpoint
from support.converting import convert
from support.hub_checkpoints import build_hub_checkpoint
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import TinyModel

import nextn
from nextn.core.backend.layers import Floats
from nextn.core.errors import ConfigError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import SpecOptions
from nextn.core.state.embedded_rows import ImageRows, ModelPrompt
from nextn.core.state.snapshot import SequenceSnapshot

FAMILIES = ("qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35")
TOLERANCE = 1e-4


def images(width: int) -> tuple[ModelPrompt, list[Any]]:
    """Two images of 4 by 3 and 2 by 5 rows between tokens, with the parts that they are made of."""
    rng = np.random.default_rng(3)
    wide, high = (rng.standard_normal((n, width)).astype(np.float32) for n in (12, 10))
    a, b, c = (random_tokens(n, seed=n) for n in (7, 3, 9))
    parts: list[Any] = [a, ImageRows.of_grid(wide, 4), b, ImageRows.of_grid(high, 2), c]
    return ModelPrompt.of(parts), parts


def test_positions() -> None:
    prompt, _ = images(8)
    found = prompt.positions(0, len(prompt))
    assert found[:7].tolist() == [[i] * 3 for i in range(7)]
    assert found[7:19].tolist() == [[7, 7 + i // 4, 7 + i % 4] for i in range(12)]
    assert found[19:22].tolist() == [[i] * 3 for i in (11, 12, 13)]  # behind the longer side
    assert found[22:32].tolist() == [[14, 14 + i // 2, 14 + i % 2] for i in range(10)]
    assert found[32].tolist() == [19] * 3
    assert prompt.n_shared == 8 + 5
    for first in range(len(prompt)):
        for n in (1, 5, len(prompt) - first + 3):
            piece = prompt.positions(first, n)
            assert piece.tolist() == prompt.positions(0, first + n)[first:].tolist()


def logits_of(hf: Any, prompt: ModelPrompt, parts: list[Any]) -> Floats:
    language = getattr(hf.model, "language_model", hf.model)
    embed = language.embed_tokens
    rows = [
        torch.from_numpy(part.rows) if isinstance(part, ImageRows) else embed(torch.tensor(part))
        for part in parts
    ]
    positions = torch.from_numpy(prompt.positions(0, len(prompt)).T.copy())[:, None].long()
    with torch.no_grad():
        hidden = language(
            inputs_embeds=torch.cat(rows)[None], position_ids=positions
        ).last_hidden_state
        found: Floats = hf.lm_head(hidden)[0].numpy()
    return found


def checkpoint(family: str, folder: Path) -> tuple[Any, Path]:
    if family == "qwen35":
        return build_checkpoint(family, folder, mtp=True).hf, convert(folder, folder / "out.gguf")
    made = build_hub_checkpoint(family, folder)
    return made.hf, convert(made.folder, folder / "out.gguf")


@pytest.mark.parametrize("device", ["torch", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(family: str, device: str, tmp_path: Path) -> None:
    hf, path = checkpoint(family, tmp_path)
    with load_runtime(path, device, n_ctx=64) as runtime:
        prompt, parts = images(runtime.model.hparams.n_embd)
        want = logits_of(hf, prompt, parts)
        error = np.abs(runtime.logits(prompt) - want).max() / max(1.0, want.std())
        plain = ModelPrompt(prompt.tokens, tuple(type(r)(r.first, r.rows) for r in prompt.runs))
        other = np.abs(runtime.logits(plain) - want).max() / max(1.0, want.std())
    assert error <= (TOLERANCE if device == "torch" else 0.02) < other


@pytest.mark.parametrize("family", ["qwen3vl", "qwen35"])
def test_the_text_behind_images(family: str, tmp_path: Path) -> None:
    """Greedy and sampled: in a batch, in pieces, from the cache and with drafts as in one pass."""
    _, path = checkpoint(family, tmp_path)
    with load_runtime(path, "cpu", n_ctx=256, draft=path) as runtime:
        prompt, _ = images(runtime.model.hparams.n_embd)
        greedy = GenerateParams(SamplingParams(temperature=0.0), max_tokens=12, logprobs=1)
        drawn = GenerateParams(SamplingParams(temperature=0.8, seed=3), max_tokens=12)
        first = [event.token for event in runtime.generate(prompt, greedy)]
        with nextn.load(path, n_ctx=256) as model:
            parts = images(model.n_embd)[1]
            flat = [one for part in parts for one in (part if isinstance(part, list) else [part])]
            assert model.generate(flat, temperature=0.0, max_tokens=12).tokens == first
        logits = runtime.logits(prompt)
        assert first[0] == int(logits[-1].argmax())
        for how in (greedy, drawn):
            plain = run_all(runtime, [prompt], how, ())[0]
            for types in (("ngram-mod",), ("draft",), ("mtp",), ("suffix", "draft")):
                if "mtp" in types and not runtime.model.nextn:
                    continue
                for found in run_all(runtime, [prompt, [1, 2, 3], prompt], how, types)[::2]:
                    assert found == plain, types


@pytest.mark.parametrize("n_steps", [0, 1, 5])
def test_a_sequence_with_images_goes_on_elsewhere(n_steps: int, tmp_path: Path) -> None:
    _, path = checkpoint("qwen35", tmp_path)
    greedy = GenerateParams(SamplingParams(temperature=0.0), max_tokens=12)
    with load_runtime(path, "cpu", n_ctx=256) as runtime:
        prompt, _ = images(runtime.model.hparams.n_embd)
        engine, other = (runtime.new_engine(runtime.plan(1)) for _ in range(2))
        sequence = engine.add(prompt, greedy)
        events = [event for _ in range(n_steps) for event in engine.step()]
        engine.snapshot(sequence).save(tmp_path / "saved")
        other.restore(SequenceSnapshot.load(tmp_path / "saved"))
        events += drain(other)
        want = [event.token for event in runtime.generate(prompt, greedy)]
        assert [event.token for event in events] == want


def test_a_model_without_height_and_width(tiny: Callable[..., TinyModel]) -> None:
    with load_runtime(tiny("llama").path, "cpu", n_ctx=64) as runtime:
        prompt, _ = images(runtime.model.hparams.n_embd)
        for use in (runtime.logits, runtime.hidden_rows, runtime.check_prompt):
            with pytest.raises(ConfigError, match="has one position for each row"):
                use(prompt)


def run_all(
    runtime: Any, prompts: list[Any], how: GenerateParams, types: tuple[str, ...]
) -> list[list[Any]]:
    drafter = None
    if types:
        options = SpecOptions(types=types, fixed=True, draft_n_max=3)
        drafter = build_speculator(replace(runtime.setting(3), options=options))
    engine = runtime.new_engine(runtime.plan(3), drafter)
    sequences = [engine.add(prompt, how) for prompt in prompts]
    events = drain(engine)
    return [
        [e._replace(sequence=0, source="") for e in events if e.sequence == sequence.id]
        for sequence in sequences
    ]
