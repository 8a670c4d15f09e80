"""Logits of converted files against `transformers`, for every family and the options that
checkpoints come with.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import State, TinyCheckpoint, build_checkpoint
from support.converting import convert, plan
from support.running import PAGES, load, random_tokens, start
from support.tiny_models import COMMON, FAMILIES, HYBRID, WITH_MTP, YARN_ROPE, build_tiny

from nextn.core.backend.interface import StateRoom
from nextn.core.backend.step import StepPart, build_step
from nextn.core.gguf.reader import open_gguf
from nextn.core.models.drafters.mtp_network import H_NEXTN

TOLERANCE = 1e-4  # logits have a standard deviation of about 1
LENGTH = 70
Edit = Callable[[dict[str, Any], State], None]


def worst(made: TinyCheckpoint, path: Path) -> float:
    tokens = random_tokens(LENGTH)
    with torch.no_grad():
        want = made.hf(torch.tensor(tokens)[None]).logits[0].numpy()
    spread = max(1.0, want.std())  # tied to the embeddings, it is 8
    assert 0.3 < want.std() < 10
    return float(np.abs(start(path).append(tokens) - want).max() / spread)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, tmp_path: Path) -> None:
    made = build_checkpoint(name, tmp_path, mtp=name in WITH_MTP)
    assert worst(made, convert(tmp_path, tmp_path / "out.gguf")) <= TOLERANCE


@pytest.mark.parametrize("name", WITH_MTP)
def test_mtp_head(name: str, tmp_path: Path) -> None:
    made, tokens = build_checkpoint(name, tmp_path, mtp=True), random_tokens(LENGTH, seed=2)
    ids = torch.tensor(tokens)[None]
    with torch.no_grad():
        hidden = made.hf.model(ids).last_hidden_state
        positions = torch.arange(1, LENGTH)[None]
        chained = made.mtp.forward_layer(
            0, hidden[:, :-1], positions, mtp_cache=None, input_ids=ids[:, 1:]
        )
        want = made.mtp._project_to_logits(chained)[0].numpy()
    model, backend = load(convert(tmp_path, tmp_path / "out.gguf"))
    (head,) = model.nextn
    state = backend.new_state(
        model.state_shape, StateRoom(n_pages=16, page_len=16, n_slots=1, window=4)
    )
    run = backend.compile(head.forward, state, max_rows=LENGTH, taps=frozenset({H_NEXTN}))
    piece = StepPart(tokens[1:], 0, PAGES, first_position=1, n_out=LENGTH - 1)
    got = run(build_step([piece], hidden[0, :-1].numpy())).logits
    assert np.abs(got - want).max() <= TOLERANCE


ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
    "yarn-attention": {**YARN_ROPE, "attention_factor": 0.8},
    "yarn-mscale": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.7},
    "yarn-betas": {**YARN_ROPE, "beta_fast": 16.0, "beta_slow": 2.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("rope", ROPES)
def test_rope_scaling(rope: str, name: str, tmp_path: Path) -> None:
    made = build_checkpoint(name, tmp_path, settings={"rope_parameters": ROPES[rope]})
    assert worst(made, convert(tmp_path, tmp_path / "out.gguf")) <= TOLERANCE


SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied": ("llama", {"tie_word_embeddings": True}),
    "tied-hybrid": ("qwen35", {"tie_word_embeddings": True}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
    "no-groups": ("llama", {"num_key_value_heads": 4}),
    "one-kv-head": ("qwen2", {"num_key_value_heads": 1}),
    "three-values-per-key": ("qwen35", {"linear_num_value_heads": 6}),
    "values-as-keys": ("qwen35", {"linear_num_value_heads": 2}),
    "next-three": ("qwen3next", {"linear_num_value_heads": 6}),
    "other-layers": (
        "qwen35",
        {"layer_types": [f"{k}_attention" for k in ("full", "linear", "linear", "full")]},
    ),
    "some-dense": ("qwen3moe", {"mlp_only_layers": [1]}),
    "wide-heads": ("qwen3", {"head_dim": 32}),
    "eps-and-theta": (
        "qwen2", {"rms_norm_eps": 1e-3,
                  "rope_parameters": {"rope_type": "default", "rope_theta": 3e5}}
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", SETTINGS)
def test_settings(case: str, tmp_path: Path) -> None:
    name, settings = SETTINGS[case]
    made = build_checkpoint(name, tmp_path, settings=settings)
    assert worst(made, convert(tmp_path, tmp_path / "out.gguf")) <= TOLERANCE


def old_hub_keys(raw: dict[str, Any], state: State) -> None:
    rope = raw.pop("rope_parameters")
    raw["rope_theta"] = rope.pop("rope_theta")
    raw["rope_scaling"] = None
    if rope.pop("rope_type") != "default":
        raw["rope_scaling"] = {"type": "llama3", **rope}
    if rope.get("partial_rotary_factor"):
        raw["partial_rotary_factor"] = rope["partial_rotary_factor"]
        raw["rope_scaling"] = {"type": "default", "mrope_section": [2, 1, 1]}
    if raw.pop("layer_types", None) and "linear_num_key_heads" in raw:
        raw["full_attention_interval"] = 4
    del raw["transformers_version"]


def nested(raw: dict[str, Any], state: State) -> None:
    """As the checkpoints of multimodal models have it."""
    inner = dict(raw)
    raw.clear()
    raw.update(
        architectures=["Qwen3_5ForConditionalGeneration"],
        model_type="qwen3_5",
        tie_word_embeddings=inner.pop("tie_word_embeddings"),
        text_config=inner,
        vision_config={"hidden_size": 8, "num_hidden_layers": 3},
    )
    for name in [name for name in state if name.startswith("model.")]:
        state["model.language_model." + name.removeprefix("model.")] = state.pop(name)
    state["model.visual.blocks.0.attn.qkv.weight"] = torch.zeros(24, 8)
    state["model.visual.merger.norm.weight"] = torch.zeros(8)


def bare(raw: dict[str, Any], state: State) -> None:
    for name in [name for name in state if name.startswith("model.")]:
        state[name.removeprefix("model.")] = state.pop(name)


def stacked(raw: dict[str, Any], state: State) -> None:
    """All experts of a layer in two tensors."""
    prefixes = {n.split(".0.gate_proj")[0] for n in state if "experts.0.gate_proj" in n}
    for prefix in prefixes:
        each = [
            {k: state.pop(f"{prefix}.{e}.{k}_proj.weight") for k in ("gate", "up", "down")}
            for e in range(4)
        ]
        both = [torch.cat([e["gate"], e["up"]]) for e in each]
        state[f"{prefix}.gate_up_proj"] = torch.stack(both)
        state[f"{prefix}.down_proj"] = torch.stack([e["down"] for e in each])


EDITS: dict[str, tuple[str, Edit]] = {
    "old-llama3": ("llama", old_hub_keys),
    "old-qwen35": ("qwen35", old_hub_keys),
    "old-qwen3next": ("qwen3next", old_hub_keys),
    "nested": ("qwen35", nested),
    "nested-moe": ("qwen35moe", nested),
    "bare": ("qwen3", bare),
    "stacked-qwen3moe": ("qwen3moe", stacked),
    "stacked-qwen35moe": ("qwen35moe", stacked),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", EDITS)
def test_spellings(case: str, tmp_path: Path) -> None:
    name, edit = EDITS[case]

    def with_type(raw: dict[str, Any], state: State) -> None:
        edit(raw, state)
        if "text_config" in raw and name == "qwen35moe":
            raw["model_type"] = "qwen3_5_moe"

    made = build_checkpoint(name, tmp_path, edit=with_type, mtp=name in WITH_MTP)
    assert worst(made, convert(tmp_path, tmp_path / "out.gguf")) <= TOLERANCE


def quantise_fp8(model: torch.nn.Module, state: State, block: int) -> None:
    """Weights of a model become what its float8 tensors mean, exactly."""
    for name, parameter in model.named_parameters():
        if not name.endswith("_proj.weight") or parameter.ndim != 2:
            continue
        with torch.no_grad():
            rows, columns = parameter.shape
            scales = torch.empty(-(-rows // block), -(-columns // block))
            codes = torch.empty_like(parameter, dtype=torch.float8_e4m3fn)
            for i in range(scales.shape[0]):
                for j in range(scales.shape[1]):
                    at = (slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block))
                    scales[i, j] = parameter[at].abs().max() / 448
                    codes[at] = (parameter[at] / scales[i, j]).to(torch.float8_e4m3fn)
                    parameter[at] = codes[at].float() * scales[i, j]
        state[name], state[f"{name}_scale_inv"] = codes, scales


def test_float8_with_block_scales(tmp_path: Path) -> None:
    made = build_checkpoint("qwen3", tmp_path)
    from safetensors.torch import load_file
    from support.checkpoints import save_state

    state = load_file(tmp_path / "model.safetensors")
    quantise_fp8(made.hf, state, block=48)  # edges that are no whole block
    save_state(tmp_path, state)
    raw = (tmp_path / "config.json").read_text()
    settings = '{"quantization_config": {"quant_method": "fp8", "weight_block_size": [48, 48]},'
    (tmp_path / "config.json").write_text(settings + raw[1:])
    assert worst(made, convert(tmp_path, tmp_path / "out.gguf")) <= TOLERANCE
    assert plan(tmp_path, kind="auto").kind == "bf16"


@pytest.mark.parametrize("name", FAMILIES)
def test_same_tensors_and_keys_as_written_by_others(name: str, tmp_path: Path) -> None:
    """`tiny_models` writes with the `gguf` package: every key and tensor of its is here, equal."""
    with_mtp = name in WITH_MTP
    theirs = open_gguf(build_tiny(name, tmp_path, mtp=with_mtp).path)
    build_checkpoint(name, tmp_path, mtp=with_mtp)
    ours = open_gguf(convert(tmp_path, tmp_path / "out.gguf"))
    assert ours.tensors.keys() == theirs.tensors.keys()
    for tensor_name, tensor in theirs.tensors.items():
        mine = ours.tensors[tensor_name]
        assert [n for n in mine.shape if n > 1] == [n for n in tensor.shape if n > 1]
        assert np.array_equal(mine.data, tensor.data), tensor_name
    # Defaults of readers, and what only the file's name decides.
    left_out = ("rope.dimension_count", "attention.key_length", "attention.value_length")
    for key in theirs.metadata:
        if key == "general.name" or (key.endswith(left_out) and key not in ours.metadata):
            continue
        entry, other = ours.metadata.entry(key), theirs.metadata.entry(key)
        assert (entry.type, entry.element) == (other.type, other.element), key
        assert np.array_equal(np.asarray(ours.metadata[key]), np.asarray(theirs.metadata[key])), key


def test_tests_would_notice(tmp_path: Path) -> None:
    """One norm weight off by 2 %."""

    def edit(raw: dict[str, Any], state: State) -> None:
        state["model.layers.1.input_layernorm.weight"][7] *= 1.02

    made = build_checkpoint("qwen3", tmp_path, edit=edit)
    assert worst(made, convert(tmp_path, tmp_path / "out.gguf")) > 5 * TOLERANCE


def test_the_sizes_of_these_models() -> None:
    assert COMMON["hidden_size"] == 64
    assert HYBRID["linear_num_key_heads"] != HYBRID["linear_num_value_heads"]
