"""Heads of every family, attached from checkpoints, against what `transformers` computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from support.attaching import attach_to, contents, metadata
from support.head_math import head_logits
from support.llama_cpp import LlamaCpp
from support.running import PAGES, load, random_tokens
from support.tiny_heads import KINDS, TinyHead, build_head, write_qwen_checkpoint
from support.tiny_models import WITH_MTP, TinyModel

from nextn.convert.heads.family_table import FAMILIES
from nextn.core.backend.interface import StateRoom
from nextn.core.backend.layers import Floats
from nextn.core.backend.step import StepPart, build_step
from nextn.core.gguf.reader import open_gguf

TOLERANCE = 1e-4  # of logits with a standard deviation of about 1; 3e-6 was the largest seen
LENGTH = 24  # longer than the windows
ALL = [*KINDS, *WITH_MTP]
WITHOUT_GRAPH = ("exaone-moe",)  # llama.cpp loads these heads and never runs them

Tiny = Callable[..., TinyModel]
Made = Callable[[str], tuple[TinyHead, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("heads")

    @cache
    def build(name: str) -> tuple[TinyHead, Path]:
        head = build_head(name, folder)
        path = folder / f"{name}-attached.gguf"
        attach_to(head.trunk, head.checkpoint, path)
        return head, path

    return build


def rows() -> tuple[Floats, list[int]]:
    hidden = np.random.default_rng(0).normal(0, 1, (LENGTH, 64)).astype(np.float32)
    return hidden, random_tokens(LENGTH, seed=5)


@pytest.mark.parametrize("name", KINDS)
def test_an_attached_head_computes_what_transformers_does(name: str, made: Made) -> None:
    head, path = made(name)
    hidden, tokens = rows()
    for index in range(head.kind.n_heads):
        want = head.logits(index, hidden, tokens)
        assert 0.5 < want.std() < 2
        assert np.abs(head_logits(path, index, hidden, tokens) - want).max() <= TOLERANCE


@pytest.mark.parametrize("name", KINDS)
def test_the_comparison_sees_a_wrong_norm(name: str, made: Made) -> None:
    head, path = made(name)
    hidden, tokens = rows()
    wrong = head_logits(path, 0, hidden * np.linspace(0.5, 2, 64, dtype=np.float32), tokens)
    assert np.abs(wrong - head.logits(0, hidden, tokens)).max() > 100 * TOLERANCE


@pytest.mark.parametrize("name", WITH_MTP)
def test_a_hybrid_runs_with_the_head_of_its_checkpoint(
    name: str, tiny: Tiny, tmp_path: Path, device: str
) -> None:
    whole = tiny(name, mtp=True)
    path = attached_hybrid(name, tiny, tmp_path)
    model, backend = load(path, device)
    hidden, tokens = rows()
    state = backend.new_state(
        model.state_shape, StateRoom(n_pages=16, page_len=16, n_slots=1, window=4)
    )
    run = backend.compile(model.nextn[0].forward, state, max_rows=LENGTH)
    piece = StepPart(tokens, 0, PAGES, first_position=1, n_out=LENGTH)
    got = run(build_step([piece], hidden)).logits
    reference = TinyHead(KINDS["glm4moe"], whole.hf, whole.mtp, path, path, None)
    tolerance = TOLERANCE if device == "torch" else 0.3  # the CPU's kernels compute with int8
    assert np.abs(got - reference.logits(0, hidden, tokens)).max() <= tolerance


def attached_hybrid(name: str, tiny: Tiny, folder: Path, quantise: str = "F32") -> Path:
    whole = tiny(name, mtp=True)
    checkpoint = write_qwen_checkpoint(folder / "hub", whole, one_by_one=name == "qwen3next")
    path = folder / f"{name}.gguf"
    attach_to(tiny(name, quantise=quantise).path, checkpoint, path)
    return path


@pytest.mark.parametrize("name", WITH_MTP)
def test_names_and_numbers_are_those_of_a_full_conversion(
    name: str, tiny: Tiny, tmp_path: Path
) -> None:
    got = contents(attached_hybrid(name, tiny, tmp_path))
    want = contents(tiny(name, mtp=True).path)
    assert got.keys() == want.keys()
    assert [n for n in want if got[n][2] != want[n][2]] == []
    assert got == want


@pytest.mark.parametrize("name", KINDS)
def test_arrays_are_as_long_as_there_are_blocks(name: str, made: Made) -> None:
    head, path = made(name)
    with open_gguf(path) as file:
        n = file.metadata.int("block_count")
        assert file.metadata.int("nextn_predict_layers") == head.kind.n_heads
    before = {key: value for key, _, _, value in metadata(head.trunk)}
    for key, _, _, value in metadata(path):
        if isinstance(value, list) and not key.startswith("tokenizer"):
            assert len(value) == n
            assert value[: len(before[key])] == before[key]


def test_what_blocks_of_a_head_have_in_arrays(made: Made) -> None:
    with open_gguf(made("mimo2")[1]) as file:
        assert file.metadata.ints("attention.head_count_kv") == (1, 2, 1, 2, 2, 2)
        assert file.metadata.ints("attention.sliding_window_pattern") == (0, 1, 0, 1, 1, 1)
    with open_gguf(made("step35")[1]) as file:
        assert file.metadata.floats("swiglu_clamp_exp") == (0, 7, 0, 0, 3)
        windowed = file.metadata.bools("attention.sliding_window_pattern")
        assert windowed == (False, True, False, True, False)


def test_copies_of_the_trunk_are_left_out_unless_asked_for(made: Made, tmp_path: Path) -> None:
    head, path = made("glm4moe")
    assert not [name for name in contents(path) if "embed_tokens" in name or "head_head" in name]
    attach_to(head.trunk, head.checkpoint, tmp_path / "all.gguf", keep_copies=True)
    hidden, tokens = rows()
    assert "blk.2.nextn.shared_head_head.weight" in contents(tmp_path / "all.gguf")
    got = head_logits(tmp_path / "all.gguf", 0, hidden, tokens)
    assert np.array_equal(got, head_logits(path, 0, hidden, tokens))
    own = contents(made("step35")[1])
    assert "blk.4.nextn.shared_head_head.weight" in own  # which is no copy


def test_every_family_has_a_model_type_of_its_own() -> None:
    types = [each for family in FAMILIES.values() for each in family.model_types]
    assert len(set(types)) == len(types)
    assert {kind.architecture for kind in KINDS.values()} | set(WITH_MTP) <= set(FAMILIES)


@pytest.mark.peer
@pytest.mark.parametrize("name", ALL)
def test_llama_cpp_loads_the_file_and_drafts_with_it(
    name: str, made: Made, tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = attached_hybrid(name, tiny, tmp_path) if name in WITH_MTP else made(name)[1]
    n_mtp = 0 if name in WITHOUT_GRAPH else 1
    banned = (*range(128, 256), 509, 510, 511)
    with capfd.disabled():
        with LlamaCpp(path) as peer:
            plain = peer.greedy(random_tokens(20), 16, banned=banned)
        with LlamaCpp(path, n_mtp=n_mtp) as peer:
            drafted = peer.greedy(random_tokens(20), 16, banned=banned)
    assert drafted.tokens == plain.tokens
    assert (drafted.timings.get("draft_n", 0) > 0) == bool(n_mtp)
