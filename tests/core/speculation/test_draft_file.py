"""The file of `-md`: what it is, whether it fits, and the one line if it does not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.running import random_tokens
from support.tiny_models import TinyModel, build_tiny
from support.vocab import tokenizer_metadata

from nextn.core import fitting
from nextn.core.backend.interface import StateRoom
from nextn.core.backend.layers import Floats
from nextn.core.backend.step import StepPart, build_step
from nextn.core.engine.config import EngineConfig
from nextn.core.engine.engine import Engine
from nextn.core.errors import ConfigError, ModelError, NextnError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.drafters.draft_model import make
from nextn.core.speculation.options import SpecOptions
from nextn.core.speculation.setting import LoadedModel, Setting
from nextn.core.state.store import StateStore

Tiny = Callable[..., TinyModel]
Edit = Callable[[dict[str, Any], dict[str, Floats]], None]
DRAFT, MTP, AUTO = (SpecOptions(types=(name,)) for name in ("draft", "mtp", "auto"))
SHARED = ("token_embd.weight", "output.weight", "output_norm.weight")


def load(path: Path, draft: Path, spec: SpecOptions = DRAFT, n_ctx: int = 64) -> Runtime:
    return load_runtime(path, "cpu", n_ctx=n_ctx, spec=spec, draft=draft)


def refusal(path: Path, draft: Path, spec: SpecOptions = DRAFT) -> str:
    with pytest.raises(NextnError) as caught:
        load(path, draft, spec)
    line = str(caught.value)
    assert line.isprintable()
    return line


def head_only(folder: Path, *left_out: str, edit: Edit | None = None, seed: int = 0) -> Path:
    """The MTP head of the tiny hybrid, without the trunk that it belongs to."""

    def cut(keys: dict[str, Any], tensors: dict[str, Floats]) -> None:
        for name in list(tensors):
            if name.startswith(tuple(f"blk.{i}." for i in range(4))) or name in left_out:
                del tensors[name]
        if edit is not None:
            edit(keys, tensors)

    folder.mkdir(exist_ok=True)
    return build_tiny("qwen35", folder, mtp=True, edit=cut, seed=seed).path


def trunk_only(folder: Path) -> Path:
    def cut(keys: dict[str, Any], tensors: dict[str, Floats]) -> None:
        for name in [name for name in tensors if name.startswith("blk.4.")]:
            del tensors[name]
        del keys["qwen35.nextn_predict_layers"]
        keys["qwen35.block_count"] = 4

    folder.mkdir(exist_ok=True)
    return build_tiny("qwen35", folder, mtp=True, edit=cut).path


# A draft model -----------------------------------------------------------------------------------


def test_it_drafts(tiny: Tiny) -> None:
    path, draft = tiny("qwen3").path, tiny("qwen35").path
    prompt, params = random_tokens(9), GenerateParams(SamplingParams(seed=1), max_tokens=20)
    with load(path, draft) as runtime:
        assert runtime.draft is not None
        want = [event.token for event in runtime.generate(prompt, params)]
        target = LoadedModel(runtime.file, runtime.model, runtime.tokenizer)
        setting = Setting(runtime.spec, target, runtime.backend, 1, 64, runtime.draft)
        sizes = runtime.budget.sizes
        engine = Engine(
            target.model,
            runtime.backend,
            target.tokenizer,
            EngineConfig(sizes),
            drafter=make(setting),
        )
        text = engine.add(prompt, params)
        while engine.has_work:
            engine.step()
        assert text.tokens == [*prompt, *want]
        assert text.stats.draft_n > 0


def test_its_own_head_is_left_out(tiny: Tiny) -> None:
    with load(tiny("qwen3").path, tiny("qwen35", mtp=True).path) as runtime:
        assert runtime.draft is not None
        assert runtime.draft.model.nextn == []


@pytest.mark.parametrize("spec", [SpecOptions(types=("none",)), SpecOptions(types=("ngram-mod",))])
def test_c12_a_file_that_nobody_uses_is_not_loaded(
    spec: SpecOptions, tiny: Tiny, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), load(tiny("qwen3").path, Path("nowhere"), spec) as found:
        assert found.draft is None
    (record,) = caplog.records
    assert record.getMessage() == (
        f"the draft model is not used: spec-type is {spec.types[0]}; give draft, mtp, eagle3, "
        "dflash, gemma4-assistant or auto"
    )


def test_c12_a_model_for_spec_type_mtp(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    draft = tiny("qwen35").path
    with caplog.at_level(logging.WARNING), load(tiny("qwen3").path, draft, MTP) as runtime:
        assert runtime.draft is None
    assert f"{draft} is not used: it is a whole model" in caplog.text


def test_c12_a_model_whose_head_would_do(tiny: Tiny, caplog: pytest.LogCaptureFixture) -> None:
    draft = tiny("qwen35", mtp=True).path
    with load_runtime(
        tiny("qwen35").path, "cpu", spec=SpecOptions(types=("mtp",)), draft=draft
    ) as runtime:
        assert runtime.draft is None
    assert "give draft for it, or its head alone (spec convert extract)" in caplog.text


def test_files_of_a_wrong_kind(tiny: Tiny, tmp_path: Path) -> None:
    path = tiny("qwen3").path
    assert "cannot be read" in refusal(path, tmp_path / "missing.gguf")
    (tmp_path / "text.gguf").write_text("hello")
    assert str(tmp_path / "text.gguf") in refusal(path, tmp_path / "text.gguf")
    raw = path.read_bytes().replace(b"qwen3", b"cliip")
    (tmp_path / "mmproj.gguf").write_bytes(raw)
    assert "architecture 'cliip' cannot be run" in refusal(path, tmp_path / "mmproj.gguf")


def no_tokenizer(keys: dict[str, Any], _tensors: Any) -> None:
    keys |= {"tokenizer.ggml.model": "no_vocab"}


def test_a_model_without_a_tokenizer(tiny: Tiny, tmp_path: Path) -> None:
    draft = build_tiny("qwen3", tmp_path, edit=no_tokenizer).path
    assert "no_vocab" in refusal(tiny("qwen3").path, draft)


# Memory ------------------------------------------------------------------------------------------


def test_both_are_counted(tiny: Tiny) -> None:
    path = tiny("qwen3").path
    with (
        load(path, tiny("qwen35").path) as with_draft,
        load_runtime(path, "cpu", n_ctx=64) as alone,
    ):
        assert alone.budget.draft == 0
        budget = with_draft.plan(3)
        assert budget.weights > alone.plan(3).weights
        assert with_draft.draft is not None
        target = LoadedModel(with_draft.file, with_draft.model, with_draft.tokenizer)
        setting = Setting(with_draft.spec, target, with_draft.backend, 3, 64, with_draft.draft)
        drafter = make(setting)
        store = StateStore(with_draft.backend, target.model.state_shape, budget.sizes, chunk=64)
        drafter.attach(store)
        own = drafter._state.store
        page, slot = with_draft.backend.state_bytes(
            with_draft.draft.model.state_shape, page_len=64, window=own.sizes.window
        )
        assert budget.draft == own.sizes.n_pages * page + own.n_slots * slot
        assert "draft model's state" in budget.describe()


def memory(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> None:
    """Free at the first look, at the second, and so on."""
    left = list(sizes)
    monkeypatch.setattr(
        fitting, "available_memory", lambda: left.pop(0) if len(left) > 1 else left[0]
    )


@pytest.mark.parametrize("family", ["qwen3", "qwen35"])
def test_one_byte_too_little(family: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that do not fit beside the model, then state that does not; both with numbers."""
    path, draft = tiny("qwen3").path, tiny(family).path
    with load(path, draft) as runtime:
        budget = runtime.budget
        state = budget.kv + budget.recurrent
        memory(monkeypatch, state + budget.draft)
        assert runtime.plan(1).sizes.n_slots == 1
        memory(monkeypatch, state + budget.draft - 1)
        with pytest.raises(ConfigError, match=r"for the draft model\).*are free"):
            runtime.plan(1)
    memory(monkeypatch, 10**9, state + 1000)
    line = refusal(path, draft)
    assert line.startswith(f"{draft}, beside the model itself: not enough memory for this model")
    assert "GiB are free" in line


# An MTP head -------------------------------------------------------------------------------------


@pytest.mark.parametrize("left_out", [(), SHARED, SHARED[1:]])
@pytest.mark.parametrize("spec", [MTP, AUTO])
def test_a_head_from_its_own_file(
    spec: SpecOptions, left_out: tuple[str, ...], tiny: Tiny, tmp_path: Path
) -> None:
    """It says what it says in the file of the whole model, with the tensors that it brings and with
    those of the trunk."""
    head, trunk = head_only(tmp_path / "head", *left_out), trunk_only(tmp_path / "trunk")
    with (
        load(trunk, head, spec) as runtime,
        load_runtime(tiny("qwen35", mtp=True).path, "cpu", n_ctx=64, spec=spec) as whole,
    ):
        assert runtime.draft is None
        assert runtime.model.state_shape == whole.model.state_shape
        np.testing.assert_array_equal(logits_of_head(runtime), logits_of_head(whole))
        assert runtime.budget.kv == whole.budget.kv


def logits_of_head(runtime: Runtime) -> Floats:
    (head,) = runtime.model.nextn
    hidden = np.random.default_rng(1).normal(size=(7, head.n_embd)).astype(np.float32)
    backend = runtime.backend
    state = backend.new_state(
        runtime.model.state_shape, StateRoom(n_pages=4, page_len=16, n_slots=1, window=4)
    )
    run = backend.compile(head.forward, state, max_rows=8, taps=frozenset({H_NEXTN}))
    piece = StepPart(random_tokens(7), 0, range(4), n_out=7)
    return run(build_step([piece], hidden)).logits.copy()


def test_a_head_from_a_file_replaces_the_models_own(tiny: Tiny, tmp_path: Path) -> None:
    """As much state as with one head, not two."""
    whole = tiny("qwen35", mtp=True).path
    other = head_only(tmp_path, seed=1)
    with (
        load(whole, other, MTP) as runtime,
        load_runtime(whole, "cpu", n_ctx=64, spec=MTP) as plain,
    ):
        assert runtime.model.state_shape == plain.model.state_shape
        assert not np.array_equal(logits_of_head(runtime), logits_of_head(plain))
        tokens = random_tokens(5)
        np.testing.assert_array_equal(runtime.logits(tokens), plain.logits(tokens))


def test_a_head_is_not_a_draft_model(tiny: Tiny, tmp_path: Path) -> None:
    line = refusal(tiny("qwen35").path, head_only(tmp_path), DRAFT)
    assert line.endswith("holds only an MTP head, which is for spec-type mtp")


def narrower(keys: dict[str, Any], tensors: dict[str, Floats]) -> None:
    keys["qwen35.embedding_length"] = 32


def another_vocabulary(keys: dict[str, Any], _tensors: Any) -> None:
    keys |= tokenizer_metadata(("then", "hello"))


def shorter(_keys: dict[str, Any], tensors: dict[str, Floats]) -> None:
    for name in ("token_embd.weight", "output.weight"):
        tensors[name] = np.concatenate([tensors[name], tensors[name][:8]])


def without_a_norm(_keys: dict[str, Any], tensors: dict[str, Floats]) -> None:
    del tensors["blk.4.nextn.hnorm.weight"]


def with_more(_keys: dict[str, Any], tensors: dict[str, Floats]) -> None:
    tensors["blk.4.surprise.weight"] = tensors["output_norm.weight"]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (narrower, "belongs to another model: its hidden rows are 32 wide, the model's 64"),
        (another_vocabulary, "belongs to another model: its token "),
        (shorter, "belongs to another model: its vocabulary has 520 rows, the model's 512"),
        (without_a_norm, "missing tensors: blk.4.nextn.hnorm.weight"),
        (with_more, "does not use tensors blk.4.surprise.weight"),
    ],
)
def test_b8_heads_that_do_not_fit(edit: Edit, said: str, tiny: Tiny, tmp_path: Path) -> None:
    head = head_only(tmp_path, edit=edit)
    line = refusal(tiny("qwen35").path, head, MTP)
    assert line.startswith(f"{head}: ")
    assert said in line


def test_a_head_that_does_not_fit_into_memory(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = head_only(tmp_path)
    path = tiny("qwen35").path
    with load_runtime(path, "cpu", n_ctx=64) as alone:
        state = alone.budget.kv + alone.budget.recurrent
    memory(monkeypatch, 10**9, state)
    with pytest.raises(ModelError, match="beside the model itself: not enough memory"):
        load(path, head, MTP)
