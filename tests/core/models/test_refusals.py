"""Files that cannot be computed as they were meant end in one line that says why, at once.

Every case changes one thing in the file of a tiny model; `refusal` asks for the line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.running import random_tokens
from support.tiny_models import FAMILIES, WITH_MTP, TinyModel, build_tiny, write

import nextn.core
from nextn.core.backend import create_backend
from nextn.core.backend.layers import Floats
from nextn.core.errors import NextnError, NonFiniteError
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.models.model import Model

Keys = dict[str, Any]
Tensors = dict[str, Floats]

# Tied to the embedding, or scaling that a file may leave out; the trunk's norm serves the head.
OPTIONAL = ("output.weight", "rope_freqs.weight", "blk.4.nextn.shared_head_norm.weight")
# What a file without the first is asked for: the newer of two ways to store the same.
STORED_OTHERWISE = {"ssm_ba.weight": "ssm_beta.weight"}


@dataclass(frozen=True)
class Parts:
    """What `write` makes a file from; `changed` copies, so that cases do not meet."""

    architecture: str
    keys: Keys
    tensors: Tensors
    folder: Path

    def file(self, keys: Keys | None = None, tensors: Tensors | None = None) -> Path:
        path = self.folder / "changed.gguf"
        path.unlink(missing_ok=True)  # an earlier case may still have it mapped
        write(path, self.architecture, keys or self.keys, tensors or self.tensors)
        return path

    def with_keys(self, **changed: Any) -> Path:
        """Relative keys, with `__` for a dot; None takes the key away."""
        full = {self.key(name.replace("__", ".")): value for name, value in changed.items()}
        return self.file(keys={k: v for k, v in (self.keys | full).items() if v is not None})

    def with_tensors(self, changed: dict[str, Floats | None]) -> Path:
        merged: dict[str, Floats | None] = {**self.tensors, **changed}
        return self.file(
            tensors={name: array for name, array in merged.items() if array is not None}
        )

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Parts]:
    @cache
    def take_apart(name: str, mtp: bool = False) -> Parts:
        folder = tmp_path_factory.mktemp("refusals")
        held: list[tuple[Keys, Tensors]] = []
        build_tiny(name, folder, mtp=mtp, edit=lambda *both: held.append(both))
        return Parts(FAMILIES[name].architecture, *held[0], folder)

    return take_apart


PartsOf = Callable[..., Parts]


def load(path: Path) -> Model:
    return build_model(open_gguf(path), create_backend("torch"))


def logits(path: Path) -> Floats:
    with nextn.core.load(path, "torch", n_ctx=64) as runtime:
        return runtime.logits(random_tokens(20))


def refusal(path: Path) -> str:
    """The one line."""
    start = time.thread_time()
    with pytest.raises(NextnError) as caught:
        load(path)
    assert time.thread_time() - start < 1
    line = str(caught.value)
    assert line.isprintable()  # no line break either
    assert str(path) in line
    return line


def test_unchanged_files_load(parts: PartsOf) -> None:
    """Or every other test here would pass for the wrong reason."""
    for name in FAMILIES:
        load(parts(name).file())
    assert load(parts("qwen35moe", mtp=True).file()).nextn


# Tensors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mtp"),
    [*((name, False) for name in FAMILIES), *((name, True) for name in WITH_MTP)],
)
def test_every_missing_tensor_is_named(name: str, mtp: bool, parts: PartsOf) -> None:
    whole = parts(name, mtp=mtp)
    for tensor in whole.tensors:
        path = whole.with_tensors({tensor: None})
        if tensor in OPTIONAL:
            load(path)
        else:
            assert _other_name(tensor) in refusal(path)


def _other_name(tensor: str) -> str:
    for stored, otherwise in STORED_OTHERWISE.items():
        tensor = tensor.replace(stored, otherwise)
    return tensor


def _one_more_row(name: str, array: Floats) -> Floats:
    # More rows than tokens are padding, which is allowed; the width of the table is not free.
    axis = 1 if name == "token_embd.weight" else 0
    return np.concatenate([array, array.take([0], axis)], axis)


MISSHAPEN = [("llama", False), ("mixtral", False), ("qwen2", False), ("qwen3next", True)]
MISSHAPEN += [("qwen35", True), ("qwen35moe", True)]


@pytest.mark.parametrize(("name", "mtp"), MISSHAPEN)
def test_every_wrong_size_is_named_with_the_right_one(name: str, mtp: bool, parts: PartsOf) -> None:
    whole = parts(name, mtp=mtp)
    for tensor, array in whole.tensors.items():
        wrong = _one_more_row(tensor, array)
        line = refusal(whole.with_tensors({tensor: wrong}))
        assert f"{tensor} has shape {wrong.shape}, expected {array.shape}" in line


@pytest.mark.parametrize(("name", "mtp"), MISSHAPEN)
def test_every_wrong_rank_is_named(name: str, mtp: bool, parts: PartsOf) -> None:
    whole = parts(name, mtp=mtp)
    for tensor, array in whole.tensors.items():
        wrong = array.reshape(2, -1) if array.squeeze().ndim == 1 else array.reshape(-1)
        line = refusal(whole.with_tensors({tensor: wrong}))
        assert f"{tensor} has shape {wrong.shape}" in line


def test_dimensions_of_one_may_be_left_out(parts: PartsOf) -> None:
    """llama.cpp's converter squeezes; other writers do not."""
    whole = parts("qwen35moe")
    squeezed = {t: a.squeeze() for t, a in whole.tensors.items() if 1 in a.shape}
    padded = {t: a[:, None] for t, a in whole.tensors.items() if a.ndim == 1}
    assert squeezed
    assert padded
    want = logits(whole.file())
    assert np.array_equal(logits(whole.with_tensors({**squeezed, **padded})), want)


@pytest.mark.parametrize(
    "extra", ["blk.0.attn_sinks.weight", "blk.0.attn_q.lora_a", "mm.0.weight", "blk.1.exp_probs_b"]
)
@pytest.mark.parametrize("name", ["llama", "qwen35moe"])
def test_a_tensor_that_would_be_left_out_is_refused(name: str, extra: str, parts: PartsOf) -> None:
    assert extra in refusal(parts(name).with_tensors({extra: np.ones(4, np.float32)}))


def test_many_missing_tensors_are_counted_not_listed(parts: PartsOf) -> None:
    whole = parts("llama")
    gone = dict.fromkeys([name for name in whole.tensors if name.startswith("blk.")])
    line = refusal(whole.with_tensors(gone))
    assert f"and {len(gone) - 6} more" in line
    assert len(line) < 400


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_unusable_rope_factors(value: float, parts: PartsOf) -> None:
    factors = parts("llama").tensors["rope_freqs.weight"].copy()
    factors[3] = value
    path = parts("llama").with_tensors({"rope_freqs.weight": factors})
    assert "rope_freqs.weight" in refusal(path)


# Keys --------------------------------------------------------------------------------------------

EVERYWHERE = (
    "context_length",
    "embedding_length",
    "block_count",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)
OF_EXPERTS = ("expert_count", "expert_used_count")
OF_DELTA_NET = (
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.group_count",
    "ssm.time_step_rank",
    "ssm.inner_size",
)


def required_keys() -> Iterator[tuple[str, str]]:
    for name, family in FAMILIES.items():
        yield from ((name, key) for key in EVERYWHERE)
        if family.hybrid:
            yield from ((name, key) for key in OF_DELTA_NET)
        if name == "mixtral" or "num_experts" in family.settings:
            yield from ((name, key) for key in OF_EXPERTS)


@pytest.mark.parametrize(("name", "key"), list(required_keys()))
def test_every_missing_key_is_named(name: str, key: str, parts: PartsOf) -> None:
    whole = parts(name)
    line = refusal(whole.with_keys(**{key: None}))
    assert whole.key(key) in line
    assert "is missing" in line


COUNTS = [0, -1, 10**9, 2**32 - 1]
NO_NUMBERS = ["two", 2.5, [2, 2, 2]]
BAD_VALUES: list[tuple[str, str, list[Any]]] = [
    ("llama", "block_count", [*COUNTS, *NO_NUMBERS]),
    ("llama", "embedding_length", [*COUNTS, *NO_NUMBERS]),
    ("llama", "context_length", [0, -1, 2**32 - 1, *NO_NUMBERS]),
    ("llama", "feed_forward_length", [-1, 10**9, 2**32 - 1, *NO_NUMBERS]),
    ("llama", "attention.head_count", [*COUNTS, *NO_NUMBERS, [4, 0]]),
    ("llama", "attention.head_count_kv", [3, 5, -1, 10**9, *NO_NUMBERS, [2, 3]]),
    ("llama", "attention.key_length", [*COUNTS, *NO_NUMBERS]),
    ("llama", "attention.value_length", [*COUNTS, *NO_NUMBERS]),
    ("llama", "attention.layer_norm_rms_epsilon", [math.nan, -1.0, math.inf, 1e9, "x", [1.0]]),
    ("llama", "attention.scale", [math.nan, -1.0, math.inf, "x"]),
    ("llama", "rope.freq_base", [0.0, math.nan, math.inf, -1.0, "x"]),
    ("llama", "rope.dimension_count", [0, 7, 15, 18, -2, 10**9, "x"]),
    ("llama", "rope.scaling.factor", [0.0, math.nan, -1.0, math.inf]),
    ("llama", "rope.scaling.type", ["longrope", 1]),
    ("llama-yarn", "rope.freq_base", [1.0, 0.5]),
    ("llama-yarn", "rope.scaling.original_context_length", [0, -1, 2**32 - 1]),
    ("llama-yarn", "rope.scaling.yarn_beta_fast", [0.0, math.nan, -1.0]),
    ("llama-yarn", "rope.scaling.yarn_beta_slow", [0.0, math.inf, -1.0]),
    ("llama-yarn", "rope.scaling.attn_factor", [math.nan, -1.0]),
    ("mixtral", "expert_count", COUNTS),
    ("mixtral", "expert_used_count", [*COUNTS, 5]),
    ("qwen35moe", "expert_gating_func", [9, -1]),
    ("qwen35moe", "expert_weights_scale", [math.nan, math.inf]),
    ("qwen35", "ssm.state_size", [*COUNTS, *NO_NUMBERS]),
    ("qwen35", "ssm.group_count", [*COUNTS, 3]),
    ("qwen35", "ssm.time_step_rank", [*COUNTS, *NO_NUMBERS]),
    ("qwen35", "ssm.inner_size", [*COUNTS, 63, 65]),
    ("qwen35", "ssm.conv_kernel", [*COUNTS, 1]),
    ("qwen35", "nextn_predict_layers", [4, 5, -1, 10**9, 2**32 - 1, "one"]),
]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [(name, key, value) for name, key, values in BAD_VALUES for value in values],
)
def test_every_impossible_value_is_named(name: str, key: str, value: Any, parts: PartsOf) -> None:
    assert key in refusal(parts(name).with_keys(**{key: value}))


# In range, but not what the tensors say: the line names a tensor instead.
CONTRADICTIONS: list[tuple[str, str, Any, str]] = [
    ("llama", "block_count", 1, "blk.1."),
    ("llama", "block_count", 3, "blk.2.attn_q.weight"),
    ("llama", "block_count", 513, "blk.2.attn_q.weight"),
    ("llama", "embedding_length", 63, "token_embd.weight"),
    ("llama", "attention.head_count", 8, "attn_q.weight"),
    ("llama", "attention.head_count_kv", 1, "attn_k.weight"),
    ("llama", "attention.key_length", 32, "attn_q.weight"),
    ("llama", "attention.value_length", 32, "attn_v.weight"),
    ("mixtral", "expert_count", 3, "ffn_gate_inp.weight"),
    ("qwen35", "ssm.conv_kernel", 5, "ssm_conv1d.weight"),
]


@pytest.mark.parametrize(("name", "key", "value", "tensor"), CONTRADICTIONS)
def test_keys_that_contradict_the_tensors(
    name: str, key: str, value: Any, tensor: str, parts: PartsOf
) -> None:
    assert tensor in refusal(parts(name).with_keys(**{key: value}))


@pytest.mark.parametrize("name", ["gpt99", "", "../llama", "llama\x1b[31m", "LLAMA"])
def test_unknown_architectures(name: str, parts: PartsOf, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    keys = {key.replace("llama.", f"{name}."): value for key, value in parts("llama").keys.items()}
    write(path, name, keys, parts("llama").tensors)
    assert "architecture" in refusal(path)


# MTP ---------------------------------------------------------------------------------------------


def test_a_lone_mtp_head(parts: PartsOf) -> None:
    whole = parts("qwen35", mtp=True)
    trunk = dict.fromkeys(
        t for t in whole.tensors if t.startswith(tuple(f"blk.{i}." for i in range(4)))
    )
    assert "MTP head" in refusal(whole.with_tensors(trunk))


def test_the_key_of_a_head_that_is_not_there(parts: PartsOf) -> None:
    """Tools that cut the head off leave the counts as they were."""
    whole = parts("qwen35", mtp=True)
    head = dict.fromkeys(t for t in whole.tensors if t.startswith("blk.4."))
    model = load(whole.with_tensors(head))
    assert len(model.blk) == 4
    assert model.nextn == []


def test_more_heads_promised_than_present(parts: PartsOf) -> None:
    whole = parts("qwen35", mtp=True)
    assert "blk.3.nextn.eh_proj.weight" in refusal(whole.with_keys(nextn_predict_layers=2))


def test_a_head_without_its_key(parts: PartsOf) -> None:
    whole = parts("qwen35", mtp=True)
    assert "blk.4." in refusal(whole.with_keys(nextn_predict_layers=0))


# Weights -----------------------------------------------------------------------------------------

BROKEN = ("token_embd.weight", "blk.0.attn_norm.weight", "output_norm.weight", "output.weight")


@pytest.mark.parametrize(
    ("name", "tensor"),
    [(name, tensor) for name in ("llama", "qwen35moe") for tensor in BROKEN]
    + [
        ("llama", "blk.0.attn_q.weight"),
        ("llama", "blk.1.ffn_down.weight"),
        ("qwen35moe", "blk.0.ssm_a"),
        ("qwen35moe", "blk.0.attn_qkv.weight"),
        ("qwen35moe", "blk.3.attn_v.weight"),
        ("qwen35moe", "blk.1.ffn_down_shexp.weight"),
    ],
)
def test_weights_of_ff_bytes_never_become_text(
    name: str, tensor: str, parts: PartsOf, device: str
) -> None:
    shape = parts(name).tensors[tensor].shape
    damaged = np.full(4 * math.prod(shape), 0xFF, np.uint8).view(np.float32).reshape(shape)
    path = parts(name).with_tensors({tensor: damaged})
    with nextn.core.load(path, device, n_ctx=64) as runtime:
        assert np.isnan(runtime.logits([1, 2, 3])).any()
        with pytest.raises(NonFiniteError) as caught:
            next(runtime.generate([1, 2, 3]))
    assert str(caught.value).isprintable()


PACKED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "F16", "BF16"]


@pytest.mark.parametrize("name", ["qwen2", "mixtral", "qwen3next", "qwen35moe"])
@pytest.mark.parametrize("quantise", PACKED)
def test_packed_weights_equal_their_floats(
    name: str, quantise: str, tiny: Callable[..., TinyModel], parts: PartsOf
) -> None:
    """The float file holds what the `gguf` package makes of the packed one."""
    packed = tiny(name, quantise=quantise).path
    read = {
        t.name: gguf.quants.dequantize(t.data, t.tensor_type)
        for t in gguf.GGUFReader(packed).tensors
    }
    floats = {t: read[t].reshape(array.shape) for t, array in parts(name).tensors.items()}
    assert any((floats[t] != array).any() for t, array in parts(name).tensors.items())
    want = logits(parts(name).file(tensors=floats))
    assert np.array_equal(logits(packed), want)
