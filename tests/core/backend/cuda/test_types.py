"""A whole model in types that few files have: products, a table that is the head, and experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.blocks import random_blocks
from support.llama_quantize import is_float
from support.random_file import small_tensor, vocabulary
from support.random_shapes import QWEN36_35B_A3B, model_keys, tensor_shapes, tiny
from support.running import random_tokens, start

from nextn.core.gguf.quants import find_format
from nextn.core.gguf.writer import TensorData, write_gguf

KINDS = {
    "token_embd": "Q3_K", "attn_qkv": "IQ2_XXS", "attn_gate": "Q2_K", "ssm_alpha": "IQ2_S",
    "ssm_beta": "TQ2_0", "ssm_out": "Q3_K", "attn_q.": "NVFP4", "attn_k.": "IQ3_XXS",
    "attn_v.": "IQ1_S", "attn_output": "TQ1_0", "ffn_gate_exps": "IQ2_XS", "ffn_up_exps": "IQ3_S",
    "ffn_down_exps": "Q2_K", "_shexp": "IQ1_M",
}  # fmt: skip
SIZES = replace(tiny(QWEN36_35B_A3B), tied=True, n_nextn=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("types") / "few.gguf"
    rng = np.random.default_rng(3)
    tensors = []
    for i, (name, shape) in enumerate(tensor_shapes(SIZES).items()):
        if is_float(name, shape) or "gate_inp" in name:
            data, kind = small_tensor(rng, name, shape).tobytes(), "F32"
        else:
            kind = next(kind for stem, kind in KINDS.items() if stem in name)
            data = random_blocks(kind, int(np.prod(shape[:-1])), shape[-1], i).tobytes()
        tensors.append(TensorData(name, shape, find_format(kind), data))
    write_gguf(found, model_keys(SIZES) | vocabulary(SIZES.n_vocab), tensors)
    return found


@pytest.mark.slow
def test_logits_are_near_the_references(path: Path, shim: None) -> None:
    tokens = random_tokens(5, seed=1)
    made, expected = (start(path, device).append(tokens) for device in ("cuda", "torch"))
    scale = expected.std()
    assert np.abs(made - expected).max() < 0.02 * scale
    assert np.abs(made[1:] - expected[:-1]).max() > scale
