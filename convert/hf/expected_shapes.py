"""The tensors that a complete model of a family has, with shapes, and what a checkpoint lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...core.errors import ModelError
from .matrix_rows import OutputTensor
from .model_config import CheckpointFamily
from .model_sizes import ModelSizes

Shapes = dict[str, tuple[int, ...]]
MOST_NAMES: Final = 4  # in a message
# The model computes without these where they are absent.
OPTIONAL: Final = (
    "output.weight", "rope_freqs.weight", ".nextn.embed_tokens.weight",
    ".nextn.shared_head_head.weight", ".nextn.shared_head_norm.weight",
)  # fmt: skip


def check_complete(
    planned: Mapping[str, OutputTensor],
    family: CheckpointFamily,
    sizes: ModelSizes,
    label: str,
    *,
    mtp_only: bool,
) -> None:
    """Raises ModelError for missing tensors, else for surplus ones, else for wrong shapes."""
    expected = _Expected(planned, family, sizes).all(mtp_only)
    missing = [n for n in expected if n not in planned and not n.endswith(OPTIONAL)]
    if missing:
        head = tuple(f"blk.{n}." for n in range(sizes.n_layers, sizes.n_blocks))
        of_head = all(name.startswith(head) for name in missing)
        hint = "; the MTP head is incomplete, --no-mtp leaves it out" if of_head else ""
        raise ModelError(f"{label}: nothing in the checkpoint makes {_listing(missing)}{hint}")
    surplus = [name for name in planned if name not in expected]
    if surplus:
        sources = [f"{planned[name].source} ({name})" for name in surplus]
        raise ModelError(
            f"{label}: a {family.architecture} has no use for {_listing(sources)}; leaving it out "
            "would change the text"
        )
    for name, tensor in planned.items():
        if tensor.shape != expected[name]:
            raise ModelError(
                f"{label}: {tensor.source} makes {name} of shape {tensor.shape}, but by "
                f"config.json it is {expected[name]}"
            )


class _Expected:
    def __init__(
        self, planned: Mapping[str, OutputTensor], family: CheckpointFamily, sizes: ModelSizes
    ) -> None:
        self.planned, self.family, self.sizes = planned, family, sizes
        # Rows may exceed the vocabulary, padded to a round number: the table itself decides.
        table = planned.get("token_embd.weight")
        n_vocab = sizes.n_vocab if table is None else table.shape[0]
        self.d, self.table = sizes.n_embd, (n_vocab, sizes.n_embd)

    def all(self, mtp_only: bool) -> Shapes:
        s, d = self.sizes, self.d
        out: Shapes = {
            "token_embd.weight": self.table, "output_norm.weight": (d,), "output.weight": self.table
        }  # fmt: skip
        if "rope_freqs.weight" in self.planned:
            out["rope_freqs.weight"] = (s.head_dim // 2,)
        for n in range(s.n_layers if mtp_only else 0, s.n_blocks):
            block = self._block(n) | (self._nextn() if n >= s.n_layers else {})
            out |= {f"blk.{n}.{name}": shape for name, shape in block.items()}
        return out

    def _nextn(self) -> Shapes:
        norms = ("enorm", "hnorm", "shared_head_norm")
        return {
            "nextn.eh_proj.weight": (self.d, 2 * self.d),
            **{f"nextn.{name}.weight": (self.d,) for name in norms},
            "nextn.embed_tokens.weight": self.table,
            "nextn.shared_head_head.weight": self.table,
        }

    def _block(self, n: int) -> Shapes:
        second = "post_attention_norm" if self.family.is_hybrid else "ffn_norm"
        out: Shapes = {"attn_norm.weight": (self.d,), f"{second}.weight": (self.d,)}
        is_recurrent = self.family.is_hybrid and self.sizes.recurrent[n]
        out |= self._delta_rule() if is_recurrent else self._attention(n)
        stems = ("gate_inp", "gate_exps", "up_exps")
        has_experts = any(f"blk.{n}.ffn_{stem}.weight" in self.planned for stem in stems)
        return out | (self._experts() if has_experts else self._dense(n))

    def _attention(self, n: int) -> Shapes:
        s, d = self.sizes, self.d
        n_q, n_kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
        out: Shapes = {
            "attn_q.weight": (n_q * (1 + self.family.is_hybrid), d),
            "attn_k.weight": (n_kv, d),
            "attn_v.weight": (n_kv, d),
        }
        out |= self._biases(n, out, required=self.family.qkv_bias)
        out |= {"attn_output.weight": (d, n_q)} | self._biases(n, {"attn_output.weight": (d, n_q)})
        if self.family.architecture not in ("llama", "qwen2"):
            out |= {"attn_q_norm.weight": (s.head_dim,), "attn_k_norm.weight": (s.head_dim,)}
        return out

    def _dense(self, n: int) -> Shapes:
        n_ff, d = self.sizes.n_ff, self.d
        out: Shapes = {
            "ffn_gate.weight": (n_ff, d), "ffn_up.weight": (n_ff, d), "ffn_down.weight": (d, n_ff)
        }  # fmt: skip
        return out | self._biases(n, out)

    def _biases(self, n: int, weights: Shapes, *, required: bool = False) -> Shapes:
        """Of these matrices; unless required, only those that the checkpoint has."""
        found = {name.replace(".weight", ".bias"): shape[:1] for name, shape in weights.items()}
        return {k: v for k, v in found.items() if required or f"blk.{n}.{k}" in self.planned}

    def _delta_rule(self) -> Shapes:
        s, d = self.sizes, self.d
        channels = 2 * s.n_key_rows + s.n_value_rows
        out: Shapes = {
            "attn_qkv.weight": (channels, d),
            "attn_gate.weight": (s.n_value_rows, d),
            "ssm_conv1d.weight": (channels, s.n_conv),
            "ssm_a": (s.n_value_heads,),
            "ssm_dt.bias": (s.n_value_heads,),
            "ssm_norm.weight": (s.linear_dim,),
            "ssm_out.weight": (d, s.n_value_rows),
        }
        if not self.family.is_tiled:
            return out | {"ssm_ba.weight": (2 * s.n_value_heads, d)}
        return out | {f"ssm_{k}.weight": (s.n_value_heads, d) for k in ("beta", "alpha")}

    def _experts(self) -> Shapes:
        s, d = self.sizes, self.d
        out: Shapes = {
            "ffn_gate_inp.weight": (s.n_experts, d),
            "ffn_gate_exps.weight": (s.n_experts, s.n_ff_expert, d),
            "ffn_up_exps.weight": (s.n_experts, s.n_ff_expert, d),
            "ffn_down_exps.weight": (s.n_experts, d, s.n_ff_expert),
        }
        if self.family.is_hybrid:
            out |= {
                "ffn_gate_inp_shexp.weight": (d,),
                "ffn_gate_shexp.weight": (s.n_ff_shared, d),
                "ffn_up_shexp.weight": (s.n_ff_shared, d),
                "ffn_down_shexp.weight": (d, s.n_ff_shared),
            }
        return out


def _listing(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
