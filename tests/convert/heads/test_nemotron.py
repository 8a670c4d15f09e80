"""Nemotron-H: two layers of its checkpoint become one block, which has to compute what both did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.attaching import attach_to
from support.head_math import Head, Rows
from support.running import PAGES, load, random_tokens
from support.tiny_models import write
from support.vocab import N_VOCAB, tokenizer_metadata

from nextn.core.backend.interface import StateRoom
from nextn.core.backend.step import StepPart, build_step
from nextn.core.gguf.reader import open_gguf

TOLERANCE = 1e-4
E, LENGTH, EPS = 64, 24, 1e-5
SETTINGS = {
    "vocab_size": N_VOCAB, "hidden_size": E, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "layers_block_type": ["full_attention", "moe"], "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 2.5,
    "layer_norm_epsilon": EPS, "max_position_embeddings": 512,
}  # fmt: skip
KEYS = {
    "block_count": 2, "embedding_length": E, "context_length": 512, "attention.head_count": 4,
    "attention.head_count_kv": [2, 0], "attention.key_length": 16, "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": EPS, "attention.layer_norm_epsilon": EPS,
    "expert_count": 4, "expert_used_count": 2, "expert_weights_norm": True,
    "expert_weights_scale": 2.5, "feed_forward_length": [0, 0],
}  # fmt: skip


class NemotronHead(Head):
    """Attention without rope, experts without a gate, and a norm at the end that takes the mean."""

    def rope(self, x: Rows) -> Rows:
        return x

    def ffn(self, x: Rows) -> Rows:
        y = x @ self.tensor("ffn_latent_down").T if self.has("ffn_latent_down") else x
        p = torch.sigmoid(x @ self.tensor("ffn_gate_inp").T)
        picked = (p + self.router_bias()).topk(2, -1).indices
        w = p.gather(1, picked)
        w = 2.5 * w / w.sum(-1, keepdim=True)
        up, down = self.tensor("ffn_up_exps")[picked], self.tensor("ffn_down_exps")[picked]
        inner = torch.einsum("te,tkfe->tkf", y, up).relu().square()
        y = torch.einsum("tk,tkef,tkf->te", w, down, inner)
        if self.has("ffn_latent_up"):
            y = y @ self.tensor("ffn_latent_up").T
        shared = (x @ self.tensor("ffn_up_shexp").T).relu().square()
        return y + shared @ self.tensor("ffn_down_shexp").T

    def last_norm(self, x: Rows) -> Rows:
        centred = x - x.mean(-1, keepdim=True)
        return self.norm_of(centred, self.tensor("nextn.shared_head_norm"))


class Made:
    def __init__(self, folder: Path, latent: int | None) -> None:
        from transformers.models.nemotron_h import modeling_nemotron_h as hf
        from transformers.models.nemotron_h.configuration_nemotron_h import NemotronHConfig

        torch.manual_seed(0)
        config = NemotronHConfig(**SETTINGS, moe_latent_size=latent, attn_implementation="eager")
        self.layers = [hf.NemotronHBlock(config, n).eval().float() for n in (0, 1)]
        for layer in self.layers:
            randomise(layer)
        self.outer = {name: torch.randn(E) * 0.2 + 1 for name in ("enorm", "hnorm", "final")}
        self.outer["eh_proj"] = torch.randn(E, 2 * E) / 11
        self.table, self.output = torch.randn(N_VOCAB, E), torch.randn(N_VOCAB, E) / 8
        self.checkpoint = self.save(folder / "hub")
        self.trunk = self.write_trunk(folder / "trunk.gguf", latent)

    def save(self, folder: Path) -> Path:
        """Experts one by one, and the parts around the layers inside of these."""
        found: dict[str, torch.Tensor] = {}
        for n, layer in enumerate(self.layers):
            for name, value in layer.state_dict().items():
                if ".experts." in name:
                    stem, part = name.rsplit(".", 1)
                    found |= {f"mtp.layers.{n}.{stem}.{i}.{part}.weight": rows
                              for i, rows in enumerate(value)}  # fmt: skip
                else:
                    found[f"mtp.layers.{n}.{name}"] = value
        for name in ("enorm", "hnorm", "eh_proj"):
            found[f"mtp.layers.0.{name}.weight"] = self.outer[name]
        found["mtp.layers.1.final_layernorm.weight"] = self.outer["final"]
        folder.mkdir()
        save_file(
            {k: v.contiguous().clone() for k, v in found.items()}, folder / "model.safetensors"
        )
        described = SETTINGS | {"model_type": "nemotron_h", "num_hidden_layers": 2}
        (folder / "config.json").write_text(json.dumps(described))
        return folder

    def write_trunk(self, path: Path, latent: int | None) -> Path:
        """Its two layers are two blocks: the one attends, the other has experts."""
        wide = latent or E
        shapes: dict[str, tuple[int, ...]] = {
            "blk.0.attn_norm.weight": (E,), "blk.0.attn_q.weight": (E, E),
            "blk.0.attn_k.weight": (32, E), "blk.0.attn_v.weight": (32, E),
            "blk.0.attn_output.weight": (E, E), "blk.1.attn_norm.weight": (E,),
            "blk.1.ffn_gate_inp.weight": (4, E), "blk.1.exp_probs_b.bias": (4,),
            "blk.1.ffn_up_exps.weight": (4, 32, wide), "blk.1.ffn_down_exps.weight": (4, wide, 32),
            "blk.1.ffn_up_shexp.weight": (48, E), "blk.1.ffn_down_shexp.weight": (E, 48),
            "output_norm.weight": (E,),
        }  # fmt: skip
        if latent:
            shapes |= {"blk.1.ffn_latent_down.weight": (latent, E)}
            shapes |= {"blk.1.ffn_latent_up.weight": (E, latent)}
        arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        arrays |= {"token_embd.weight": self.table.numpy(), "output.weight": self.output.numpy()}
        named = {f"nemotron_h_moe.{key}": value for key, value in KEYS.items()}
        write(path, "nemotron_h_moe", tokenizer_metadata() | named, arrays)
        return path

    def logits(self, hidden: Any, tokens: Any) -> Any:
        e, h = self.table[torch.as_tensor(tokens)], torch.as_tensor(hidden)
        both = [rms_norm(e, self.outer["enorm"]), rms_norm(h, self.outer["hnorm"])]
        x = (torch.cat(both, -1) @ self.outer["eh_proj"].T)[None]
        mask = torch.full((1, 1, LENGTH, LENGTH), -torch.inf).triu(1)
        with torch.no_grad():
            for layer in self.layers:
                x = layer(x, attention_mask=mask)
        x = torch.nn.functional.layer_norm(x[0], (E,), self.outer["final"], None, EPS)
        return (x @ self.output.T).numpy()


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (E,), weight, EPS)


def randomise(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if value.ndim == 1:
                value.normal_(1.0 if "norm" in name else 0.0, 0.2)
            else:
                value.normal_(0.0, value.shape[-1] ** -0.5)


@pytest.mark.parametrize("latent", [None, 32])
def test_one_block_computes_what_two_layers_did(latent: int | None, tmp_path: Path) -> None:
    made = Made(tmp_path, latent)
    attach_to(made.trunk, made.checkpoint, tmp_path / "out.gguf")
    hidden = np.random.default_rng(0).normal(0, 1, (LENGTH, E)).astype(np.float32)
    tokens = random_tokens(LENGTH, seed=5)
    want = made.logits(hidden, tokens)
    with open_gguf(tmp_path / "out.gguf") as file:
        assert file.metadata.ints("attention.head_count_kv") == (2, 0, 2)
        got = NemotronHead(file, 0).logits(hidden, tokens).float().numpy()
    assert 0.5 < want.std() < 2
    assert np.abs(got - want).max() <= TOLERANCE
    assert np.abs(drafted(tmp_path / "out.gguf", hidden, tokens) - want).max() <= TOLERANCE


def drafted(path: Path, hidden: Any, tokens: list[int]) -> Any:
    """Logits of the head as the runtime runs it."""
    model, backend = load(path)
    (network,) = model.nextn
    room = StateRoom(n_pages=16, page_len=16, n_slots=1, window=4)
    run = backend.compile(
        network.forward, backend.new_state(model.state_shape, room), max_rows=LENGTH
    )
    part = StepPart(tokens, 0, PAGES, first_position=1, n_out=LENGTH)
    return run(build_step([part], hidden)).logits
