"""Tensors of a checkpoint under one spelling, with their scales, and those that are left out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from ..checkpoint import StoredTensor
from .matrix_rows import Float8Scales, StoredMatrix
from .model_config import ModelConfig
from .mxfp4_matrix import find_mxfp4, is_of_mxfp4

# Prefixes of `layers.N`, longest first. A trunk that was saved alone has none.
_PREFIXES: Final = (
    "model.language_model.model.", "language_model.model.", "model.language_model.",
    "model.text_model.", "text_model.", "model.", "backbone.",
)  # fmt: skip
_HEADS: Final = ("language_model.lm_head.", "model.lm_head.", "lm_head.")
_OTHER_SENSES: Final = re.compile(
    r"(^|\.)(visual|vision(_\w+)?|audio(_\w+)?|embed_vision|embed_audio|speech_embeddings|"
    r"multi_modal_projector|vit_large_projector|mm_projector|image_newline|patch_merger|projector)"
    r"(\.|$)"
)
# Heads of ERNIE that GGUF has no place for, and
# values that are computed anew, and scales for activations or caches that stay in floats.
_NEEDLESS: Final = re.compile(
    r"((^|\.)mtp_(block|emb_norm|hidden_norm|linear_proj)\..+|rotary_emb\.inv_freq|\.rotary_emb\.\w+|masked_bias|attn\.bias|"
    r"(input|activation|k|v|q|kv)_scale|input_global_scale|(q|k|v)_zero_point)$"
)
_SCALE: Final = re.compile(r"(.+\.(?:weight|gate_up_proj|down_proj))_scale(_inv)?")
_PACKED: Final = ("qweight", "qzeros", "weight_packed", "blocks", "absmax", "SCB", "nested_absmax")
_RANKS: Final = (8, 4)  # of MiMo's checkpoints
FLOATS: Final = ("F64", "F32", "F16", "BF16")
FLOAT8: Final = ("F8_E4M3", "F8_E5M2")


class SortedTensors(Struct):
    matrices: dict[str, StoredMatrix] = field(default_factory=dict)  # by the one spelling
    other_senses: list[str] = field(default_factory=list)  # vision, audio


def sort_tensors(tensors: Mapping[str, StoredTensor], config: ModelConfig) -> SortedTensors:
    out = SortedTensors()
    scales: dict[str, StoredTensor] = {}
    weights: dict[str, StoredTensor] = {}
    packed = find_mxfp4(tensors, config.label)
    out.matrices |= {plain_name(name): matrix for name, matrix in packed.items()}
    for name, tensor in tensors.items():
        if is_of_mxfp4(name, packed):
            continue
        if _OTHER_SENSES.search(name):
            out.other_senses.append(name)
        elif found := _SCALE.fullmatch(name):
            scales[found[1]] = tensor
        elif not _NEEDLESS.search(name):
            weights[name] = tensor
    for name, tensor in weights.items():
        own = plain_name(name)
        if own in out.matrices:
            raise ModelError(
                f"{config.label}: tensors {printable(out.matrices[own].tensor.name)} and "
                f"{printable(name)} are the same of the model"
            )
        out.matrices[own] = _matrix(tensor, scales.pop(name, None), config)
    if scales:
        lonely = next(iter(scales.values())).name
        raise ModelError(
            f"{config.label}: tensor {printable(lonely)} scales a weight that is not there"
        )
    return out


def plain_name(name: str) -> str:
    """The name from `layers.N.`, `mtp.`, `embed_tokens.`, `norm.` or `lm_head.` on."""
    for head in _HEADS:
        if name.startswith(head):
            return "lm_head." + name.removeprefix(head)
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _matrix(tensor: StoredTensor, scale: StoredTensor | None, config: ModelConfig) -> StoredMatrix:
    if tensor.name.endswith(_PACKED) or tensor.dtype not in (*FLOATS, *FLOAT8):
        method = config.get("quantization_config")
        named = method.get("quant_method") if isinstance(method, Mapping) else None
        how = f" (quant_method {printable(named)})" if named else ""
        raise ModelError(
            f"{config.label}: tensor {printable(tensor.name)} is quantised{how}, as "
            f"{tensor.dtype}: "
            "convert the original checkpoint instead; of quantised ones, float8 alone can be read"
        )
    if scale is None:
        if tensor.dtype in FLOAT8:
            raise ModelError(
                f"{config.label}: tensor {printable(tensor.name)} is {tensor.dtype}, but has no "
                f"{tensor.name}_scale_inv"
            )
        return StoredMatrix(tensor)
    settings = config.get("quantization_config")
    return StoredMatrix(tensor, block_scales(tensor, scale, settings, config.label))


def block_scales(
    tensor: StoredTensor, scale: StoredTensor, settings: Any, label: str
) -> Float8Scales:
    """One factor for all, one per row, or one per block of the size that `settings` have, the
    quantization_config of config.json."""
    shape = tensor.shape
    wrong = ModelError(
        f"{label}: {printable(scale.name)} of {scale.dtype} {scale.shape} does not fit "
        f"{printable(tensor.name)} of {tensor.shape}"
    )
    if len(shape) < 2 or scale.dtype not in (*FLOATS, "F8_E8M0"):
        raise wrong
    rows, columns = shape[-2:]
    n_matrices = StoredMatrix(tensor).n_rows // max(1, rows)
    n = math.prod(scale.shape)
    if n == n_matrices:
        return Float8Scales(replace(scale, shape=(n, 1)), rows, (rows, columns))
    if n == n_matrices * rows and (len(scale.shape) == 1 or scale.shape[-1] == 1):
        return Float8Scales(replace(scale, shape=(n, 1)), rows, (1, columns))
    block = block_size(settings, label)
    if own := _rows_of_rank(tensor, scale, block):
        return Float8Scales(scale, own, block)
    if scale.shape != (*shape[:-2], -(-rows // block[0]), -(-columns // block[1])):
        raise wrong
    return Float8Scales(scale, rows, block)


def _rows_of_rank(tensor: StoredTensor, scale: StoredTensor, block: tuple[int, int]) -> int:
    """Queries, keys and values in one matrix may lie as the ranks of a parallel run had them, with
    blocks counted from the first row of each. 0: these do not."""
    if not tensor.name.endswith("qkv_proj.weight") or len(tensor.shape) != 2:
        return 0
    for ranks in _RANKS:
        own, rest = divmod(tensor.shape[0], ranks)
        if not rest and scale.shape[0] == ranks * -(-own // block[0]):
            return own
    return 0


def block_size(settings: Any, label: str) -> tuple[int, int]:
    """Rows and columns that share a factor."""
    found: Any = settings.get("weight_block_size") if isinstance(settings, Mapping) else None
    if found is None:
        return 128, 128
    is_pair = isinstance(found, list) and len(found) == 2
    if not is_pair or any(type(n) is not int or n < 1 for n in found):
        raise ModelError(
            f"{label}: config.json: weight_block_size is {printable(found)}, not two sizes"
        )
    return found[0], found[1]
