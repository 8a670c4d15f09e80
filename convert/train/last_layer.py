"""A drafter's layer that begins as the target's last one, as far as the shapes are the same.

The drafter's residual stream has rows of length one, the target's long ones: what a layer adds is
made as much shorter.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.backend.layers import RopePairs
from ...core.runtime import Runtime
from .eagle3_network import Eagle3Network

_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
_FFN = ("ffn_gate", "ffn_up", "ffn_down")


def start_from_last_layer(network: Eagle3Network, runtime: Runtime) -> list[str]:
    """The tensors that were taken over."""
    stored = _LastLayer(network, runtime)
    taken: list[str] = []
    with torch.no_grad():
        d = network.shape.hidden_size
        one = torch.eye(d) / len(network.layers)
        network.fc.weight.copy_(one.repeat(1, len(network.layers)))
        if stored.has("attn_norm", _ATTENTION) and stored.pairs is not None:
            norm = stored.read("attn_norm")
            for name in ("attn_q", "attn_k", "attn_v"):
                matrix = stored.read(name) * norm
                if name != "attn_v" and stored.pairs is RopePairs.HALVES:
                    matrix = _as_neighbours(matrix, network.shape.head_dim)
                getattr(network, name).weight.copy_(
                    torch.cat([torch.zeros_like(matrix), matrix], 1)
                )
            network.attn_output.weight.copy_(stored.read("attn_output") * stored.shortening)
            taken += _ATTENTION
        if stored.has("ffn_norm", _FFN):
            network.ffn_norm.weight.copy_(stored.read("ffn_norm"))
            network.ffn.gate_proj.weight.copy_(stored.read("ffn_gate"))
            network.ffn.up_proj.weight.copy_(stored.read("ffn_up"))
            network.ffn.down_proj.weight.copy_(stored.read("ffn_down") * stored.shortening)
            taken += _FFN
    return taken


class _LastLayer:
    def __init__(self, network: Eagle3Network, runtime: Runtime) -> None:
        self._file, self._last = runtime.file, runtime.model.hparams.n_layers - 1
        self.shortening = float(network.scale[-1])
        shape, d = network.shape, network.shape.hidden_size
        n_q, n_kv = (
            n * shape.head_dim for n in (shape.num_attention_heads, shape.num_key_value_heads)
        )
        f = shape.intermediate_size
        self._shapes = {
            "attn_norm": (d,), "attn_q": (n_q, d), "attn_k": (n_kv, d), "attn_v": (n_kv, d),
            "attn_output": (d, n_q), "ffn_norm": (d,), "ffn_gate": (f, d), "ffn_up": (f, d),
            "ffn_down": (d, f),
        }  # fmt: skip
        # None where heads turn in another way than a drafter's, or have norms of their own.
        self.pairs: RopePairs | None = None
        mixer = getattr(runtime.model.blk[-1], "mixer", None)
        attention = getattr(mixer, "attention", None)
        rope = getattr(attention, "rope", None)
        has_norms = getattr(attention, "q_norm", None) is not None
        if rope is not None and not has_norms and 2 * len(rope.frequencies) == shape.head_dim:
            self.pairs = rope.pairs

    def has(self, *groups: str | tuple[str, ...]) -> bool:
        names = [name for each in groups for name in ((each,) if isinstance(each, str) else each)]
        tensors = self._file.tensors
        return all(
            (found := tensors.get(f"blk.{self._last}.{name}.weight")) is not None
            and found.shape == self._shapes[name]
            for name in names
        )

    def read(self, name: str) -> Tensor:
        found = self._file.tensors[f"blk.{self._last}.{name}.weight"]
        return torch.from_numpy(found.floats().copy()).float()


def _as_neighbours(matrix: Tensor, head_dim: int) -> Tensor:
    """Rows in the order in which the two of a pair are neighbours."""
    heads = matrix.reshape(-1, 2, head_dim // 2, matrix.shape[1])
    return heads.transpose(1, 2).reshape(matrix.shape)
