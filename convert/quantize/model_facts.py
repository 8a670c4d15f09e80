"""Properties of a file that llama.cpp's mixtures depend on: kinds of tensors by their names, and a
few sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from ...core.gguf.metadata import Metadata

Shape = tuple[int, ...]
FLOATS = ("F32", "F16", "BF16", "F64")

# Never quantised, besides vectors, norms and what is not a `.weight`: small tensors, and tensors
# that readers expect as floats.
_FLOAT_PARTS = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel",
    "per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight",
    "indexer.k_proj.weight", "indexer.q_proj.weight",
    "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight",
    "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight",
    "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
    "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos",
    ".patch_embd", ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
_FLOAT_NAMES = ("position_embd.weight", "token_types.weight")
# The first part that a name contains gives the tensor's kind. Fused tensors count as attn_v.
_KINDS = (
    ("attn_qkv.weight", "attn_v"), ("attn_kv_b.weight", "attn_v"), ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"), ("attn_q.weight", "attn_q"), ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"), ("ffn_gate", "ffn_gate"), ("ffn_down", "ffn_down"),
)  # fmt: skip
OUTPUT, EMBEDDING, OTHER = "output", "token_embd", "other"
# By these layer counts llama.cpp takes a model for one "of 70B".
_LAYERS_OF_70B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}


def may_be_quantised(name: str, shape: Shape) -> bool:
    n_dims = len(shape) - next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return (
        n_dims >= 2
        and name.endswith("weight")
        and name not in _FLOAT_NAMES
        and not any(part in name for part in _FLOAT_PARTS)
    )


def kind_of(name: str) -> str:
    if name == "output.weight":
        return OUTPUT
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return EMBEDDING
    return next((kind for part, kind in _KINDS if part in name), OTHER)


class ModelFacts(Struct, frozen=True):
    """The sizes of a model that mixtures depend on."""

    architecture: str
    n_layers: int  # MTP blocks included
    n_experts: int = 0
    n_gqa: int = 1  # query heads for each key-value head
    is_70b: bool = False
    heads: frozenset[int] = frozenset()  # blocks of MTP heads

    @classmethod
    def of(cls, metadata: Metadata, names: list[str]) -> ModelFacts:
        """Sizes that a file lacks, an adapter's for example, get their usual values."""
        architecture = metadata.architecture
        n_named = max(
            (layer for name in names if (layer := layer_of(name)) is not None), default=-1
        )
        n_layers = metadata.int("block_count", n_named + 1)
        heads = _of_first_layer(metadata, "attention.head_count")
        kv_heads = _of_first_layer(metadata, "attention.head_count_kv")
        kv_heads = heads if kv_heads is None else kv_heads
        n_gqa = heads // kv_heads if heads and kv_heads else 0
        n_trunk = n_layers - metadata.int("nextn_predict_layers", 0)
        is_70b = _LAYERS_OF_70B.get(architecture) == n_trunk
        is_70b &= architecture != "llama" or heads != kv_heads
        n_experts = metadata.int("expert_count", 0)
        return cls(architecture, n_layers, n_experts, n_gqa, is_70b, head_blocks(names))


def head_blocks(names: Iterable[str]) -> frozenset[int]:
    """Blocks with tensors that only MTP heads have."""
    found = (re.match(r"blk\.(\d+)\.nextn\.", name) for name in names)
    return frozenset(int(match[1]) for match in found if match)


def layer_of(name: str) -> int | None:
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else None


def _of_first_layer(metadata: Metadata, key: str) -> int | None:
    if not metadata.has(key):
        return None
    if metadata.entry(metadata.full_key(key)).element is None:
        return metadata.int(key)
    return next(iter(metadata.ints(key)), None)


def in_llama_order(names: Iterable[str]) -> list[str]:
    """Names by layer, then by name; those without a layer first."""

    def key(name: str) -> tuple[int, str]:
        layer = layer_of(name)
        return (-1 if layer is None else layer, name)

    return sorted(names, key=key)
