"""What llama.cpp demands of a file before it loads it, beyond what makes sense by itself.

Each rule is a function from a file to complaints; one that does not concern the architecture has
none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from ...core.gguf.reader import GgufFile
from ...core.gguf.types import ValueType
from ...core.models import is_head_only
from ...core.tokenizer.pretokenizers import PRE_TOKENIZERS

Rule = Callable[[GgufFile], Iterator[str]]

HYBRIDS: Final = ("qwen3next", "qwen35", "qwen35moe")
# Loaded without the tensors although the key is there; all others demand them.
TOLERANT: Final = (
    "glm4moe", "deepseek2", "mimo2", "step35", "cohere2moe", "hy_v3", "bailingmoe3", "deepseek32",
    "glm-dsa",
)  # fmt: skip
PER_LAYER: Final = (
    "attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_used_count",
    "swiglu_clamp_exp", "swiglu_clamp_shexp", "attention.recurrent_layers",
)  # fmt: skip
REQUIRED: Final = (
    "context_length", "embedding_length", "block_count", "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)  # fmt: skip
_DELTA_RULE: Final = (
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.time_step_rank", "ssm.inner_size"
)  # fmt: skip


def refused(file: GgufFile) -> list[str]:
    """By llama.cpp alone: what is sound by itself, and runs here."""
    rules = (_rope_sections, _llama_rope, _gating, _output)
    return [complaint for rule in rules for complaint in rule(file)]


def broken_rules(file: GgufFile) -> list[str]:
    return [complaint for rule in RULES for complaint in rule(file)]


def _required(file: GgufFile) -> Iterator[str]:
    needed = (*REQUIRED, *(_DELTA_RULE if file.metadata.architecture in HYBRIDS else ()))
    for key in needed:
        if file.metadata.full_key(key) not in file.metadata:
            yield f"{file.metadata.full_key(key)} is missing"


def _per_layer_lengths(file: GgufFile) -> Iterator[str]:
    n_blocks = _number(file, "block_count")
    for key in PER_LAYER:
        found = _array(file, key)
        if found is not None and n_blocks and len(found) != n_blocks:
            yield (
                f"{file.metadata.full_key(key)} has {len(found)} entries for {n_blocks} blocks "
                "(MTP blocks count)"
            )


def _window_pattern(file: GgufFile) -> Iterator[str]:
    found, n_blocks = _array(file, "attention.sliding_window_pattern"), _number(file, "block_count")
    if found is not None and len(found) < n_blocks and file.metadata.architecture != "exaone-moe":
        yield (
            f"{file.metadata.full_key('attention.sliding_window_pattern')} has {len(found)} of "
            f"{n_blocks} entries: the last blocks count as full attention"
        )


def _rope_sections(file: GgufFile) -> Iterator[str]:
    if file.metadata.architecture in ("qwen35", "qwen35moe"):
        found = _array(file, "rope.dimension_sections")
        if found is None or len(found) != 4:
            key = file.metadata.full_key("rope.dimension_sections")
            yield f"{key} must be four integers, [11, 11, 10, 0] say"


def _llama_rope(file: GgufFile) -> Iterator[str]:
    if file.metadata.architecture != "llama" or "llama.rope.dimension_count" not in file.metadata:
        return
    width, heads = _number(file, "embedding_length"), _number(file, "attention.head_count")
    head_dim = _number(file, "attention.key_length") or (width // heads if heads else 0)
    n_rot = _number(file, "rope.dimension_count")
    if head_dim and n_rot != head_dim:
        yield f"llama.rope.dimension_count is {n_rot}, but heads are {head_dim} wide"


def _gating(file: GgufFile) -> Iterator[str]:
    if file.metadata.architecture == "exaone-moe" and not _number(file, "expert_gating_func"):
        yield "exaone-moe.expert_gating_func is missing (2: sigmoid)"


def _output(file: GgufFile) -> Iterator[str]:
    if file.metadata.architecture == "mimo2" and "output.weight" not in file.tensors:
        yield "output.weight is missing; mimo2 does not share its embeddings"


def _nextn(file: GgufFile) -> Iterator[str]:
    architecture, n = file.metadata.architecture, _number(file, "nextn_predict_layers")
    if not n:
        return
    n_blocks = _number(file, "block_count")
    if n >= n_blocks:
        yield f"nextn_predict_layers is {n} of block_count {n_blocks}, which counts them as well"
        return
    for block in range(n_blocks - n, n_blocks):
        prefix = f"blk.{block}."
        has_any = any(name.startswith(prefix) for name in file.tensors)
        if not has_any and architecture in TOLERANT:
            continue
        for name in ("eh_proj", "enorm", "hnorm"):
            if f"{prefix}nextn.{name}.weight" not in file.tensors:
                yield (
                    f"{prefix}nextn.{name}.weight is missing, but nextn_predict_layers is {n}: "
                    "attach the head, or set the key to 0 and block_count to "
                    f"{n_blocks - n}"
                )
        if architecture == "mimo2" and f"{prefix}attn_qkv.weight" not in file.tensors:
            yield f"{prefix}attn_qkv.weight is missing: mimo2's MTP blocks must be fused"
    if n > 1 and architecture in (*HYBRIDS, "glm4moe", "deepseek2"):
        yield f"nextn_predict_layers is {n}; {architecture} can run one head"


def _stray_nextn(file: GgufFile) -> Iterator[str]:
    if _number(file, "nextn_predict_layers"):
        return
    stray = [name for name in file.tensors if ".nextn." in name]
    if stray:
        yield f"{stray[0]} is there, but nextn_predict_layers is not: the head is not seen"


def _sinks(file: GgufFile) -> Iterator[str]:
    for name in file.tensors:
        if name.endswith("attn_sinks"):
            yield f"{name} must be called {name}.weight"


def _vector_types(file: GgufFile) -> Iterator[str]:
    for name, tensor in file.tensors.items():
        is_kept = len(tensor.shape) == 1 or name.endswith(("_norm.weight", "ssm_conv1d.weight"))
        if is_kept and tensor.format.name not in ("F32", "I32", "I64"):
            yield f"{name} is {tensor.format.name}; vectors and norms must be F32"


def _vocabulary(file: GgufFile) -> Iterator[str]:
    key = "tokenizer.ggml.tokens"
    if key not in file.metadata:
        if not is_head_only(file):
            yield f"{key} is missing"
        return
    n_tokens = len(file.metadata.entry(key).value)
    table = file.tensors.get("token_embd.weight")
    if table is not None and table.shape[0] != n_tokens:
        yield f"token_embd.weight has {table.shape[0]} rows for {n_tokens} tokens"
    model = file.metadata.str("tokenizer.ggml.model", "")
    if model == "gpt2":
        if "tokenizer.ggml.merges" not in file.metadata:
            yield "tokenizer.ggml.merges is missing"
        pre = file.metadata.str("tokenizer.ggml.pre", "")
        if pre not in PRE_TOKENIZERS:
            yield f"tokenizer.ggml.pre is {pre[:40]!r}, which is not known"
    if model == "llama" and "tokenizer.ggml.scores" not in file.metadata:
        yield "tokenizer.ggml.scores is missing"


def _decay(file: GgufFile) -> Iterator[str]:
    """Not llama.cpp's own rule, but what its formula needs."""
    for name, tensor in file.tensors.items():
        if name.endswith(".ssm_a") and tensor.format.name == "F32":
            values = tensor.floats()
            if np.isfinite(values).all() and (values > 0).any():
                yield f"{name} has a positive value: it is to hold -exp(A_log)"


def _number(file: GgufFile, key: str) -> int:
    """Per-layer values have no single number: 0, as where there is none."""
    found = file.metadata.full_key(key)
    if found not in file.metadata or file.metadata.entry(found).type is ValueType.ARRAY:
        return 0
    value = file.metadata.entry(found).value
    return value if isinstance(value, int) else 0


def _array(file: GgufFile, key: str) -> np.ndarray | None:
    found = file.metadata.full_key(key)
    if found not in file.metadata or file.metadata.entry(found).type is not ValueType.ARRAY:
        return None
    return np.asarray(file.metadata.entry(found).value)


RULES: Final[tuple[Rule, ...]] = (
    _required, _per_layer_lengths, _window_pattern, _rope_sections, _llama_rope, _gating, _output,
    _nextn, _stray_nextn, _sinks, _vector_types, _vocabulary, _decay,
)  # fmt: skip
