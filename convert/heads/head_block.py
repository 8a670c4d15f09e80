"""One block of a head: names mapped, experts stacked, matrices split or fused as the target has
them. Nothing is read here but headers; numbers come when they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from ...core.gguf.quants import BlockFormat, find_format
from .checkpoint_weights import CheckpointWeights
from .lazy_values import (
    Floats,
    LazyValues,
    joined,
    plus_one,
    scaled,
    side_by_side,
    slab,
    stacked,
    turned,
)
from .mtp_family import EXPERT, STACK, MtpFamily, Names
from .stored_head import HeadTensor

_IGNORED: Final = ("rotary_emb.inv_freq", "self_attn.rotary_emb.inv_freq")
_KEPT: Final = {"F64": "F32", "F32": "F32", "F16": "F16", "BF16": "BF16"}
_HALVES: Final = ("nextn.e_proj.weight", "nextn.h_proj.weight")
_QKV: Final = ("attn_q", "attn_k", "attn_v")

# Tensors of a block lie in a file as they are used.
_ORDER: Final = {
    stem: place
    for place, stem in enumerate(
        (
            "hc_attn_fn", "hc_attn_scale", "hc_attn_base",
            "attn_norm", "attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm",
            "attn_kv_b", "attn_k_b", "attn_v_b", "attn_qkv", "attn_q", "attn_k", "attn_v",
            "attn_q_norm", "attn_k_norm", "attn_gate", "attn_sinks", "attn_kv", "attn_output",
            "attn_output_a", "attn_output_b", "hc_ffn_fn", "hc_ffn_scale", "hc_ffn_base",
            "post_attention_norm", "ffn_norm", "ffn_gate_inp", "exp_probs_b", "ffn_gate_up_exps",
            "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_inp_shexp", "ffn_gate_shexp",
            "ffn_up_shexp", "ffn_down_shexp", "ffn_gate", "ffn_up", "ffn_down", "post_ffw_norm",
            "layer_output_norm", "nextn.eh_proj", "nextn.enorm", "nextn.hnorm",
            "nextn.embed_tokens", "nextn.shared_head_norm", "nextn.shared_head_head",
        )
    )
}  # fmt: skip

Block = dict[str, LazyValues]


class TargetStyle(Struct, frozen=True):
    """How the target stores what may be stored in more than one way."""

    splits_kv_b: bool = True
    fuses_qkv: bool = False
    fuses_gate_up: bool = False

    @classmethod
    def of(cls, names: Iterable[str]) -> TargetStyle:
        """The style that the names of a target's tensors show."""
        stems = {name.split(".", 2)[2] for name in names if name.startswith("blk.")}
        has = {stem.rpartition(".")[0] for stem in stems}
        return cls(
            splits_kv_b="attn_kv_b" not in has or "attn_k_b" in has,
            fuses_qkv="attn_qkv" in has and "attn_q" not in has,
            fuses_gate_up="ffn_gate_up_exps" in has,
        )


def read_block(
    weights: CheckpointWeights, family: MtpFamily, names: Names, style: TargetStyle
) -> list[HeadTensor]:
    block: Block = {}
    experts: dict[str, dict[int, LazyValues]] = {}
    for inner, name in names.items():
        if inner in _IGNORED or inner in family.left_out:
            continue
        if match := EXPERT.fullmatch(inner):
            experts.setdefault(match[2], {})[int(match[1])] = weights.values(name)
        elif match := STACK.fullmatch(inner):
            _slice_stack(weights, name, match[1], experts)
        elif stem := family.stem(inner):
            block[stem] = _vector_or_matrix(weights, name, inner)
        else:
            raise ModelError(
                f"{weights.label}: {printable(name)} has no place in a head of "
                f"{family.architecture}"
            )
    block |= _stack_experts(weights, experts, fused=style.fuses_gate_up)
    if "attn_kv_b.weight" in block and style.splits_kv_b:
        block |= _split_kv_b(weights, block.pop("attn_kv_b.weight"), family.sizes)
    if all(half in block for half in _HALVES):
        block["nextn.eh_proj.weight"] = _eh_proj(weights, *map(block.pop, _HALVES))
    if family.fuses_qkv or style.fuses_qkv:
        _fuse_qkv(block)
    if family.shifted_norms:
        block |= {s: plus_one(v) for s, v in block.items() if s.endswith("norm.weight")}
    if missing := [stem for stem in family.needs if stem not in block]:
        raise ModelError(f"{weights.label}: {missing[0]} of the head is missing")
    factors = family.factors(weights)
    block |= {stem: scaled(block[stem], by) for stem, by in factors.items() if stem in block}
    return [_tensor(stem, block[stem]) for stem in sorted(block, key=_place_in_block)]


def _place_in_block(stem: str) -> tuple[int, str]:
    name = stem.removesuffix(".weight").removesuffix(".bias")
    return _ORDER.get(name, len(_ORDER)), stem


def _tensor(stem: str, values: LazyValues) -> HeadTensor:
    return HeadTensor(stem, values.shape, _kept(values), values.pieces)


def _kept(values: LazyValues) -> BlockFormat:
    return find_format(_KEPT.get(values.dtype, "BF16"))


def _vector_or_matrix(weights: CheckpointWeights, name: str, inner: str) -> LazyValues:
    if inner.endswith("qkv_proj.weight") and (ranks := _regrouped(weights, name)):
        return ranks
    return weights.values(name)


# Experts -----------------------------------------------------------------------------------------


def _slice_stack(
    weights: CheckpointWeights, name: str, kind: str, experts: dict[str, dict[int, LazyValues]]
) -> None:
    """A stack of all experts, taken apart without reading it."""
    tensor = weights.floating(name)
    if len(tensor.shape) != 3:
        raise ModelError(
            f"{weights.label}: {printable(name)} has shape {tensor.shape}, expected three"
        )
    n, rows, _ = tensor.shape
    half = rows // 2
    parts = {"gate": (0, half), "up": (half, rows)} if kind == "gate_up" else {kind: (0, rows)}
    for part, (first, last) in parts.items():
        experts[part] = {i: slab(tensor, i, first, last) for i in range(n)}


def _stack_experts(
    weights: CheckpointWeights, experts: Mapping[str, Mapping[int, LazyValues]], *, fused: bool
) -> Block:
    for kind, found in experts.items():
        n = max(len(others) for others in experts.values())
        missing = sorted(set(range(n)) - set(found))
        if missing or len({values.shape for values in found.values()}) > 1:
            what = f"expert {missing[0]} is missing" if missing else "experts differ in shape"
            raise ModelError(f"{weights.label}: {kind}_proj of the head's experts: {what}")
    ordered = {kind: [found[i] for i in sorted(found)] for kind, found in experts.items()}
    if fused and {"gate", "up"} <= set(ordered):
        pairs = zip(ordered.pop("gate"), ordered.pop("up"), strict=True)
        ordered["gate_up"] = [joined(pair) for pair in pairs]
    return {f"ffn_{kind}_exps.weight": stacked(parts) for kind, parts in ordered.items()}


# Attention ---------------------------------------------------------------------------------------


def _split_kv_b(weights: CheckpointWeights, kv_b: LazyValues, own: str) -> Block:
    """Keys turned for the absorbed form, values as they are: [heads, ...] each."""
    n_heads, n_key, n_value = (
        weights.number(*dict.fromkeys((own + key, key)))
        for key in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim")
    )
    rows, rank = kv_b.shape
    if rows != n_heads * (n_key + n_value):
        raise ModelError(
            f"{weights.label}: kv_b_proj has {rows} rows, but config.json says {n_heads} heads of "
            f"{n_key} and {n_value}"
        )
    per_head = (n_heads, n_key + n_value, rank)
    return {
        "attn_k_b.weight": turned(
            kv_b,
            (n_heads, rank, n_key),
            lambda x: x.reshape(per_head)[:, :n_key].transpose(0, 2, 1),
        ),
        "attn_v_b.weight": turned(
            kv_b, (n_heads, n_value, rank), lambda x: x.reshape(per_head)[:, n_key:]
        ),
    }


def _eh_proj(weights: CheckpointWeights, left: LazyValues, right: LazyValues) -> LazyValues:
    """One matrix of two: the embedding's half comes first."""
    if len(left.shape) != 2 or left.shape != right.shape:
        raise ModelError(
            f"{weights.label}: e_proj of the head is {left.shape}, h_proj {right.shape}"
        )
    return side_by_side(left, right)


def _fuse_qkv(block: Block) -> None:
    for kind in ("weight", "bias"):
        names = [f"{stem}.{kind}" for stem in _QKV]
        if all(name in block for name in names):
            block[f"attn_qkv.{kind}"] = joined([block.pop(name) for name in names])


def _regrouped(weights: CheckpointWeights, name: str) -> LazyValues | None:
    """MiMo's FP8 matrices lie as the ranks of a parallel run had them: [q k v] of each in turn, its
    blocks of scales counted from its own first row. None if this one does not."""
    tensor, scale = weights.tensors[name], weights.tensors.get(f"{name}_scale_inv")
    if scale is None or len(scale.shape) != 2 or "v_head_dim" not in weights.config:
        return None
    n_rows, n_columns = tensor.shape
    block, width = weights.scale_block()
    for ranks in (8, 4):
        own = n_rows // ranks
        if not n_rows % ranks and scale.shape[0] == ranks * -(-own // block):
            break
    else:
        return None
    q = weights.number("num_attention_heads") * weights.number("head_dim")
    n_kv = weights.number("swa_num_key_value_heads", "num_key_value_heads")
    k, v = n_kv * weights.number("head_dim"), n_kv * weights.number("v_head_dim")
    if q + k + v != n_rows or any(part % ranks for part in (q, k, v)):
        raise ModelError(f"{weights.label}: {printable(name)} does not divide into {ranks} ranks")
    per_rank = scale.shape[0] // ranks
    factors = scale.floats()

    def rows_of(rank: int, first: int, last: int) -> LazyValues:
        def read() -> Iterator[Floats]:
            start = rank * own
            row = rank * per_rank + np.arange(first, last) // block
            wide = factors[row].repeat(width, axis=1)[:, :n_columns]
            yield tensor.floats(start + first, start + last) * wide

        return LazyValues((last - first, n_columns), "BF16", read)

    bounds = (0, q // ranks, (q + k) // ranks, own)
    return joined(
        [rows_of(rank, first, last) for first, last in pairwise(bounds) for rank in range(ranks)]
    )
