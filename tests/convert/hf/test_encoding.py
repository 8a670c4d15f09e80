"""Numbers as bytes: what the `gguf` package makes of them, whatever the slabs."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from support.checkpoints import State, build_checkpoint, save_state
from support.converting import convert, plan

from nextn.cli.app import run
from nextn.convert.hf import matrix_rows
from nextn.core.gguf.reader import open_gguf

KINDS = {"f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_type(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With numbers halfway between two, subnormal ones and zeros."""

    def edit(raw: dict[str, object], state: State) -> None:
        weight = state["model.layers.0.mlp.up_proj.weight"]
        weight[0] = torch.tensor(np.arange(64, dtype=np.uint32) * 0x800 + 0x3F800000).view(
            torch.float32
        )
        weight[1], weight[2] = 0.0, 1e-7

    build_checkpoint("qwen35", tmp_path, mtp=True, edit=edit)
    plain = open_gguf(convert(tmp_path, tmp_path / "f32.gguf"))
    monkeypatch.setattr(matrix_rows, "SLAB_BYTES", 5000)  # some rows at a time
    made = open_gguf(convert(tmp_path, tmp_path / "out.gguf", kind=kind))
    wanted = gguf.GGMLQuantizationType[KINDS[kind]]
    seen = set()
    for name, tensor in made.tensors.items():
        seen.add(tensor.format.name)
        values = plain.tensors[name].floats()
        if tensor.format.name == "F32":
            assert np.array_equal(tensor.floats(), values)
        else:
            want = gguf.quants.quantize(values, wanted).reshape(-1).view(np.uint8)
            assert np.array_equal(tensor.data, want), name
    assert seen == {"F32", KINDS[kind]}
    norms = [t for n, t in made.tensors.items() if n.endswith(("norm.weight", "conv1d.weight"))]
    assert {tensor.format.name for tensor in norms} == {"F32"}


@pytest.mark.parametrize("kind", ["Q4_K_M", "Q3_K_S", "IQ4_XS", "MXFP4_MOE"])
@pytest.mark.parametrize("family", ["qwen35", "qwen35moe", "llama"])
def test_a_mixture_is_what_quantize_makes_of_the_floats(
    family: str, kind: str, tmp_path: Path
) -> None:
    folder = build_checkpoint(family, tmp_path / "c", mtp=family != "llama").folder
    floats = convert(folder, tmp_path / "floats.gguf", kind="f32")
    code = run(
        ["convert", "quantize", str(floats), "-o", str(tmp_path / "want.gguf"), "--type", kind]
    )
    assert code == 0
    made = convert(folder, tmp_path / "made.gguf", kind=kind.lower())
    with open_gguf(made) as ours, open_gguf(tmp_path / "want.gguf") as want:
        assert ours.tensors.keys() == want.tensors.keys()
        for name, tensor in want.tensors.items():
            assert ours.tensors[name].format == tensor.format, name
            assert np.array_equal(ours.tensors[name].data, tensor.data), name
        assert list(ours.metadata) == list(want.metadata)
        assert repr(dict(ours.metadata.items())) == repr(dict(want.metadata.items()))
        assert len({tensor.format.name for tensor in ours.tensors.values()}) > 1


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")],
)
def test_auto_keeps_what_there_is(dtype: torch.dtype, kind: str, tmp_path: Path) -> None:
    made = build_checkpoint("qwen3", tmp_path)
    state = {name: value.to(dtype) for name, value in made.hf.state_dict().items()}
    save_state(tmp_path, state)
    assert plan(tmp_path, kind="auto").kind == kind
    with open_gguf(convert(tmp_path, tmp_path / "out.gguf", kind="auto")) as file:
        ours = file.tensors["blk.0.ffn_up.weight"].floats()
        assert np.array_equal(ours, state["model.layers.0.mlp.up_proj.weight"].float().numpy())
