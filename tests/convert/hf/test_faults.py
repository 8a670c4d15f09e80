"""What can be wrong with a checkpoint, and with the place to write to: one line each, no file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import State, TinyCheckpoint, build_checkpoint
from support.converting import check_line, convert, plan
from support.thoroughness import n_examples

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.hf import Options, plan_conversion
from nextn.convert.hf.matrix_rows import OutputTensor
from nextn.core.errors import ConfigError, ModelError, NextnError
from nextn.core.gguf.reader import open_gguf

Edit = Callable[[dict[str, Any], State], None]
LAYER = "model.layers.1."


def without(name: str) -> Edit:
    def edit(raw: dict[str, Any], state: State) -> None:
        del state[name]

    return edit


def with_value(name: str, value: float, row: int = 3) -> Edit:
    def edit(raw: dict[str, Any], state: State) -> None:
        state[name][row] = value

    return edit


def with_tensor(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Edit:
    return lambda raw, state: state.update({name: torch.zeros(shape, dtype=dtype)})


def with_setting(**values: Any) -> Edit:
    return lambda raw, state: raw.update(values)


Q = f"{LAYER}self_attn.q_proj.weight"
FAULTS: list[tuple[str, Edit, str]] = [
    ("qwen3", without(Q), "nothing in the checkpoint makes blk.1.attn_q.weight"),
    ("qwen2", without(f"{LAYER}self_attn.k_proj.bias"), "makes blk.1.attn_k.bias"),
    ("qwen3", with_tensor(f"{LAYER}self_attn.sinks", 4), "sinks' has no place"),
    ("qwen3", with_tensor("model.layers.2.mlp.up_proj.weight", 8, 8), "config.json's count"),
    ("llama", with_tensor(f"{LAYER}self_attn.q_norm.weight", 16), "has no use for .*q_norm"),
    ("qwen3", with_tensor(Q, 48, 64), r"q_proj.* shape \(48, 64\), expected \(64, 64\)"),
    ("qwen3", with_tensor("model.norm.weight", 32), r"config.json: .*\(32,\), expected \(64,\)"),
    ("qwen3", with_setting(model_type="bloom"), "'bloom' cannot be converted .known: llama"),
    ("qwen3", with_setting(hidden_act="gelu"), "hidden_act is 'gelu'"),
    ("qwen3", with_setting(num_key_value_heads=3), "cannot share"),
    (
        "qwen3",
        with_setting(intermediate_size=1000),
        "config.json: feed_forward_length is 1000, but blk.0.ffn_down.weight is ",
    ),
    ("qwen3", with_setting(hidden_size="64"), "hidden_size is '64', not a size"),
    ("llama", with_setting(rope_parameters={"rope_type": "longrope"}), "'longrope' is not supp"),
    ("qwen35", with_setting(layer_types=["linear_attention"]), "layer_types does not name the 4"),
    ("qwen35", with_setting(linear_value_head_dim=8), "differ"),
    ("qwen3", with_tensor(f"{Q}_scale_inv", 1, 1, 9), "does not fit"),
    ("qwen3", with_tensor(f"{LAYER}nothing.weight_scale_inv", 1), "that is not there"),
    ("qwen3", with_tensor(Q, 64, 64, dtype=torch.float8_e4m3fn), "but has no .*_scale_inv"),
    ("qwen3", with_tensor(Q, 64, 32, dtype=torch.uint8), "is quantised, as U8"),
    ("qwen3moe", without(f"{LAYER}mlp.experts.2.up_proj.weight"), "expert 2 is missing"),
    ("qwen3moe", with_tensor(f"{LAYER}mlp.experts.2.up_proj.weight", 8, 64), "unlike the others"),
    ("qwen3", with_tensor("norm.weight", 64), "are the same of the model"),
    ("qwen3", with_tensor("mtp.fc.weight", 64, 128), "convert without it: --no-mtp"),
    ("qwen35", with_tensor("mtp.fc.weight", 64, 128), "MTP head is incomplete.*--no-mtp"),
    ("qwen35", with_tensor("mtp.other.weight", 64), "is of an MTP head, but has no place"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edit", "message"), FAULTS)
def test_headers_and_configuration(name: str, edit: Edit, message: str, tmp_path: Path) -> None:
    build_checkpoint(name, tmp_path, edit=edit)
    with pytest.raises(ModelError, match=message) as caught:
        plan(tmp_path)
    check_line(caught.value)


NUMBERS: list[tuple[Edit, str, str]] = [
    (with_value(Q, float("nan")), "f32", "q_proj.weight' holds nan near row 3"),
    (with_value(Q, float("-inf")), "q8_0", "holds -inf near row 3"),
    (with_value(Q, 1e6), "f16", "too large for F16; convert with --type bf16"),
    (with_value("model.norm.weight", float("nan")), "bf16", "model.norm.weight' holds nan"),
]


@pytest.mark.parametrize(("edit", "kind", "message"), NUMBERS)
def test_numbers(edit: Edit, kind: str, message: str, tmp_path: Path) -> None:
    build_checkpoint("qwen3", tmp_path, edit=edit)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ModelError, match=message):
        convert(tmp_path, tmp_path / "out.gguf", kind=kind)
    assert sorted(tmp_path.iterdir()) == before


def test_large_numbers_fit_where_they_fit(tmp_path: Path) -> None:
    build_checkpoint("qwen3", tmp_path, edit=with_value(Q, 1e6))
    path = convert(tmp_path, tmp_path / "out.gguf", kind="bf16")
    assert open_gguf(path).tensors["blk.1.attn_q.weight"].floats().max() == pytest.approx(1e6, 0.01)


# What is left out ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    return build_checkpoint("qwen35", tmp_path_factory.mktemp("hybrid"), mtp=True)


def test_without_the_head(hybrid: TinyCheckpoint) -> None:
    made = plan(hybrid.folder, mtp="without")
    assert not any(".nextn." in name or "blk.4." in name for name in made.planned)
    assert made.metadata["qwen35.block_count"] == 4
    assert "qwen35.nextn_predict_layers" not in made.metadata


def test_only_the_head(hybrid: TinyCheckpoint, tmp_path: Path) -> None:
    path = convert(hybrid.folder, tmp_path / "head.gguf", mtp="only")
    with open_gguf(path) as file:
        blocks = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
        assert blocks == {"4"}
        assert {"token_embd.weight", "output_norm.weight", "output.weight"} <= set(file.tensors)
        assert file.metadata.int("block_count") == 5
        assert file.metadata.int("nextn_predict_layers") == 1
        assert len(file.metadata.bools("attention.recurrent_layers")) == 5


def test_a_head_that_is_promised_only(tmp_path: Path) -> None:
    build_checkpoint("qwen35", tmp_path, edit=with_setting(mtp_num_hidden_layers=1))
    made = plan(tmp_path)
    assert made.metadata["qwen35.block_count"] == 4
    assert any("names 1 MTP head" in note for note in made.notes)
    with pytest.raises(ModelError, match="has no MTP head"):
        plan(tmp_path, mtp="only")


def test_a_tied_head_that_is_there_all_the_same(tmp_path: Path) -> None:
    build_checkpoint("qwen3", tmp_path, edit=with_setting(tie_word_embeddings=True))
    made = plan(tmp_path)
    assert "output.weight" not in made.planned
    assert any("lm_head is left out" in note for note in made.notes)


def test_rows_that_are_no_whole_blocks(tmp_path: Path) -> None:
    build_checkpoint("qwen3", tmp_path, settings={"intermediate_size": 80})
    made = plan(tmp_path, kind="q8_0")
    assert made.types()["F16"] == 2
    assert any("2 tensors become F16" in note for note in made.notes)


# Where it is written ---------------------------------------------------------------------------


def test_an_interrupt_leaves_nothing(
    hybrid: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def slabs(self: Any) -> Iterator[Any]:
        if self.name.startswith("blk.2."):
            seen.extend(tmp_path.iterdir())
            raise KeyboardInterrupt
        yield from whole(self)

    whole = OutputTensor.slabs
    monkeypatch.setattr(OutputTensor, "slabs", slabs)
    with pytest.raises(KeyboardInterrupt):
        convert(hybrid.folder, tmp_path / "out.gguf")
    assert len(seen) == 1  # the temporary file was there
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays(hybrid: TinyCheckpoint, tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_bytes(b"mine")
    with pytest.raises(ConfigError, match="exists already"):
        convert(hybrid.folder, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == b"mine"


def test_no_room(hybrid: TinyCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage)
    with pytest.raises(NextnError, match=r"has 0 MB free, \d MB are needed"):
        convert(hybrid.folder, tmp_path / "out.gguf")
    with pytest.raises(ConfigError, match="there is no folder"):
        convert(hybrid.folder, tmp_path / "deep" / "out.gguf")


def test_shards(hybrid: TinyCheckpoint, tmp_path: Path) -> None:
    whole = open_gguf(convert(hybrid.folder, tmp_path / "whole.gguf"))
    first = convert(hybrid.folder, tmp_path / "cut.gguf", max_shard_bytes=200_000)
    assert first.name.startswith("cut-00001-of-")
    cut = open_gguf(first)
    assert len(cut.paths) > 3
    assert all(np.array_equal(whole.tensors[n].data, t.data) for n, t in cut.tensors.items())
    assert list(cut.tensors) == list(whole.tensors)


# Any configuration -----------------------------------------------------------------------------

VALUES = st.none() | st.booleans() | st.integers(-3, 600) | st.floats() | st.sampled_from(
    ["", "qwen3_5_text", "llama", [], [1, 2], {}, {"rope_type": "yarn"}, {"rope_type": []},
     {"quant_method": "gptq"}, 2**70, [None]]
)  # fmt: skip
NAMES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "intermediate_size", "max_position_embeddings", "rms_norm_eps", "layer_types",
    "rope_parameters", "rope_scaling", "rope_theta", "model_type", "architectures", "text_config",
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "hidden_act",
    "linear_conv_kernel_dim", "quantization_config", "sliding_window", "tie_word_embeddings",
    "eos_token_id", "mtp_num_hidden_layers", "partial_rotary_factor", "num_experts",
)  # fmt: skip


@settings(max_examples=n_examples(200), deadline=None)
@given(changes=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))
def test_any_configuration(hybrid: TinyCheckpoint, changes: dict[str, Any]) -> None:
    with open_checkpoint(hybrid.folder) as checkpoint:
        raw = json.loads((hybrid.folder / "config.json").read_text())
        checkpoint.config = raw | changes
        try:
            plan_conversion(checkpoint, hybrid.folder, Options())
        except NextnError as error:
            check_line(error)
