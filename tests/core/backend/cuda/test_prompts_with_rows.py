"""Rows in prompts through the CUDA kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from support.host_device import use_for_cuda
from support.rows_in_prompts import with_rows
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import TinyModel
from support.towers import build_vision_model, picture

from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.engine.engine import Engine
from nextn.core.errors import ConfigError
from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import SpecOptions
from nextn.core.state.embedded_rows import ImageRows, ModelPrompt
from nextn.core.vision.image_encoder import image_bytes
from nextn.core.vision.image_prompt import finish

Tiny = Callable[..., TinyModel]
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=10, logprobs=1)
TOKENS = random_tokens(29, seed=2, n_vocab=256)
MTP = SpecOptions(types=("mtp",), fixed=True, draft_n_max=3)


def write(engine: Engine, *prompts: ModelPrompt | list[int]) -> list[list[Event]]:
    sequences = [engine.add(prompt, GREEDY) for prompt in prompts]
    events = drain(engine)
    return [
        [e._replace(sequence=0, source="") for e in events if e.sequence == sequence.id]
        for sequence in sequences
    ]


def check(tiny: Tiny, family: str, quantise: str, *, mtp: bool) -> None:
    """Beside a prompt of tokens, in a batch, with and without drafts."""
    with load_runtime(tiny(family, mtp=mtp, quantise=quantise).path, "cuda", n_ctx=64) as runtime:
        prompts = [with_rows(runtime, TOKENS, first, end) for first, end in ((3, 25), (20, 29))]
        (plain,) = write(runtime.new_engine(runtime.plan(1)), TOKENS)
        assert write(runtime.new_engine(runtime.plan(3)), *prompts, TOKENS) == [plain] * 3
        if not mtp:
            return
        setting = replace(runtime.setting(3), options=MTP)
        engine = runtime.new_engine(runtime.plan(3), build_speculator(setting))
        sequence = engine.add(prompts[0], GREEDY)
        assert write(engine, prompts[1], TOKENS) == [plain] * 2
        assert sequence.stats.draft_n


@pytest.mark.parametrize(
    ("family", "quantise", "mtp"),
    [("qwen35", "Q8_0", True), ("llama", "F16", False), ("gemma3", "Q8_0", False)],
)
def test_rows_are_like_their_tokens(
    family: str, quantise: str, mtp: bool, tiny: Tiny, shim: None
) -> None:
    check(tiny, family, quantise, mtp=mtp)


def test_rows_of_prompts_that_run_by_themselves(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_for_cuda(monkeypatch, prompts=PromptSizes(few=10, calls=(64,), chunk=64))
    check(tiny, "qwen35", "Q8_0", mtp=True)


def test_rows_with_height_and_width_are_refused(tiny: Tiny, shim: None) -> None:
    with load_runtime(tiny("qwen35").path, "cuda", n_ctx=64) as runtime:
        rows = np.zeros((4, runtime.model.hparams.n_embd), np.float32)
        prompt = ModelPrompt.of([[1], ImageRows.of_grid(rows, 2)])
        engine = runtime.new_engine(runtime.plan(1))
        for use in (runtime.logits, runtime.check_prompt, lambda p: engine.add(p, GREEDY)):
            with pytest.raises(ConfigError, match="use --device cpu"):
                use(prompt)


def test_a_model_with_rows_behind_layers(tmp_path: Path, shim: None) -> None:
    """Texts are those of other devices; the tower is on the CPU, and its rows are refused."""
    vision = build_vision_model("qwen3vl", tmp_path)
    with load_runtime(vision.text, "torch", n_ctx=64) as runtime:
        want = runtime.logits(TOKENS)
    with load_runtime(vision.text, "cuda", n_ctx=64, mmproj=vision.mmproj) as runtime:
        np.testing.assert_allclose(runtime.logits(TOKENS), want, atol=0.02)
        image = runtime.images.read(image_bytes(picture(64, 64), "image", bytes))
        (rows,) = finish(runtime.images.encode(image))
        assert isinstance(rows, ImageRows)
        assert rows.rows.shape == (image.n_rows, 3 * 64)
        for part in (rows, rows.rows):
            with pytest.raises(ConfigError, match="does not add rows behind layers"):
                runtime.check_prompt(ModelPrompt.of([[1], part, [2]]))
