"""Importance matrices against the inputs that transformers' own layers get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.running import random_tokens
from support.tiny_models import TinyModel

from nextn.convert.measure.importance_run import observing_backend, read_squares
from nextn.convert.measure.input_squares import InputSquares
from nextn.convert.quantize.imatrix import importance_tensors
from nextn.core.errors import NonFiniteError
from nextn.core.gguf.reader import open_gguf

Tiny = Callable[..., TinyModel]
CHUNKS = [random_tokens(40, seed, n_vocab=256) for seed in range(3)]
N_ROWS = sum(map(len, CHUNKS))


def squares_of(model: TinyModel, **how: Any) -> InputSquares:
    with open_gguf(model.path) as file:
        return read_squares(file, observing_backend("cpu"), CHUNKS, lambda done, total: None, **how)


def inputs_of(hf: Any, names: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Rows that go into these layers, (T, columns)."""
    rows: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    modules = dict(hf.named_modules())
    hooks = [
        modules[name].register_forward_pre_hook(
            lambda _module, given, name=name: rows[name].append(given[0].flatten(0, -2))
        )
        for name in names
    ]
    with torch.no_grad():
        for chunk in CHUNKS:
            hf(torch.tensor([chunk]))
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(found).numpy() for name, found in rows.items()}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_sums_are_those_of_the_inputs(family: str, tiny: Tiny) -> None:
    model = tiny(family)
    squares = squares_of(model, with_output=True)
    layers = {
        "self_attn.q_proj": ("attn_q", "attn_k", "attn_v"),
        "self_attn.o_proj": ("attn_output",),
        "mlp.gate_proj": ("ffn_gate", "ffn_up"),
        "mlp.down_proj": ("ffn_down",),
    }
    wanted = {
        f"model.layers.{i}.{layer}": [f"blk.{i}.{stem}.weight" for stem in stems]
        for i in range(2)
        for layer, stems in layers.items()
    } | {"lm_head": ["output.weight"]}
    inputs = inputs_of(model.hf, list(wanted))
    assert {name for names in wanted.values() for name in names} == set(squares.sums)
    for layer, names in wanted.items():
        for name in names:
            assert squares.counts[name].tolist() == [N_ROWS]
            np.testing.assert_allclose(
                squares.sums[name][0], (inputs[layer].astype(np.float64) ** 2).sum(0), rtol=1e-3
            )


def test_experts_count_the_rows_that_they_read(tiny: Tiny) -> None:
    model = tiny("qwen3moe")
    squares = squares_of(model)
    layer = "model.layers.1.mlp.gate"
    rows = inputs_of(model.hf, [layer])[layer]
    with open_gguf(model.path) as file:
        router, gate, up = (
            file.tensors[f"blk.1.ffn_{stem}.weight"].floats()
            for stem in ("gate_inp", "gate_exps", "up_exps")
        )
    chosen = np.argsort(-(rows @ router.T), axis=1)[:, :2]
    name = "blk.1.ffn_{}_exps.weight"
    for expert in range(len(gate)):
        read = rows[(chosen == expert).any(1)]
        middle = read @ gate[expert].T
        inner = middle / (1 + np.exp(-middle)) * (read @ up[expert].T)
        for stem, given in (("gate", read), ("up", read), ("down", inner)):
            assert squares.counts[name.format(stem)][expert] == len(read)
            sums = (given.astype(np.float64) ** 2).sum(0)
            np.testing.assert_allclose(squares.sums[name.format(stem)][expert], sums, rtol=1e-3)
    counts = squares.counts["blk.1.ffn_down_exps.weight"]
    assert counts.sum() == 2 * N_ROWS
    tensors = {made.name: made for made in importance_tensors(squares.sums, squares.counts)}
    assert tensors["blk.1.ffn_down_exps.weight.counts"].shape == (len(gate), 1)


@pytest.mark.parametrize("family", ["deepseek2", "qwen35", "gpt-oss", "lfm2"])
def test_every_matrix_of_a_block_is_counted(family: str, tiny: Tiny) -> None:
    """Those with several matrices that read the same rows, as of heads, have one count."""
    model = tiny(family)
    squares = squares_of(model)
    with open_gguf(model.path) as file:
        matrices = {
            name: tensor.shape
            for name, tensor in file.tensors.items()
            if name.startswith("blk.")
            and name.endswith(".weight")
            and len(tensor.shape) > 1
            and not name.endswith((".conv.weight", "conv1d.weight"))
        }
    assert set(squares.sums) == set(matrices)
    for made in importance_tensors(squares.sums, squares.counts):
        name, _, kind = made.name.rpartition(".")
        n_matrices = matrices[name][0] if "_exps" in name else 1
        columns = matrices[name][-1]
        if len(matrices[name]) > 2 and n_matrices == 1:
            columns *= matrices[name][0]
        columns = columns if kind == "in_sum2" else 1
        shape = (n_matrices, columns) if n_matrices > 1 else (columns,)
        assert made.shape == shape, made.name


def test_a_quantised_file_gives_what_its_weights_give(tiny: Tiny) -> None:
    exact, quantised = (squares_of(tiny("llama", quantise=kind)) for kind in ("F32", "Q8_0"))
    for name, sums in exact.sums.items():
        np.testing.assert_allclose(quantised.sums[name], sums, rtol=0.2, atol=0.05 * sums.max())


def test_broken_weights_are_named(tiny: Tiny, tmp_path: Any) -> None:
    from support.tiny_models import build_tiny

    def break_norm(_keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["blk.1.ffn_norm.weight"] = tensors["blk.1.ffn_norm.weight"] * np.float32(np.nan)

    model = build_tiny("llama", tmp_path, edit=break_norm)
    with pytest.raises(NonFiniteError, match=r"chunk 1 of the text: .*blk\.1\.ffn"):
        squares_of(model)
