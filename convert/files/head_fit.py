"""Whether a head belongs to a trunk: what cannot work is an error, what looks wrong a suspicion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from ...core.errors import ModelError
from ...core.gguf.reader import GgufFile
from ...core.gguf.tensors import without_ones
from ..heads.lazy_values import Floats
from ..heads.stored_head import EH_PROJ, EMBED, OWN_HEAD, HeadTensor, StoredHead
from .gguf_head import GgufTrunk
from .model_parts import ModelParts, Shapes

_NORMS: Final = ("nextn.enorm.weight", "nextn.hnorm.weight")
_ALWAYS: Final = (EH_PROJ, *_NORMS)
# Matrices that are stored one by one or as one, and the axis along which they are joined.
_FUSED: Final[Mapping[str, tuple[tuple[str, ...], int]]] = {
    "attn_qkv": (("attn_q", "attn_k", "attn_v"), 0),
    "ffn_gate_up_exps": (("ffn_gate_exps", "ffn_up_exps"), 1),
}
_JOINED: Final = {part: whole for whole, (parts, _) in _FUSED.items() for part in (*parts, whole)}
_NOT_COMPARED: Final = ("nextn.", "layer_output_norm", "indexer", "attn_compressor", "hc_")
_OUTPUTS: Final = frozenset({"attn_output.weight", "attn_output_b.weight"})
# Rows are compared by their error relative to what they hold. Quantisation to two bits gives some
# 0.3, rows of another model 1.4; norms and floats are stored exactly, but for the last bits.
_QUANTISED_APART: Final = 0.7
_EXACT_APART: Final = 0.02
_SAMPLED_ROWS: Final = 8


def fit(head: StoredHead, target: GgufFile, parts: ModelParts) -> StoredHead:
    """The head with shapes written as the target does. Raises what makes it impossible."""
    if head.architecture != parts.architecture:
        raise ModelError(
            f"{head.label} holds a head for {head.architecture}, {target.label} is a "
            f"{parts.architecture}"
        )
    if head.n_trunk != parts.n_trunk:
        raise ModelError(
            f"{head.label} belongs to a model of {head.n_trunk} layers, {target.label} has "
            f"{parts.n_trunk}"
        )
    shapes = _trunk_shapes(parts)
    problems: list[str] = []
    blocks = []
    for index, block in enumerate(head.blocks):
        blocks.append([_fit_tensor(tensor, shapes, problems) for tensor in block])
        problems += [
            f"{stem} is missing"
            for stem in _missing(head.shapes[index], parts.blocks[: parts.n_trunk])
        ]
    problems += _nextn_problems(head, target)
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ModelError(
            f"the head of {head.label} does not fit {target.label}: {'; '.join(problems[:3])}{more}"
        )
    return replace(head, blocks=blocks)


def twin_of(shapes: Shapes, parts: ModelParts, kind: str) -> int | None:
    """The layer of the trunk that is most like a block of a head in one of its halves; the last
    of several."""
    wanted = _half(shapes, kind)
    twin, best = None, 0
    for block, layer in enumerate(parts.blocks[: parts.n_trunk]):
        half = _half(layer, kind)
        if len(half) >= max(best, 1) and half.items() <= wanted.items():
            twin, best = block, len(half)
    return twin


def _trunk_shapes(parts: ModelParts) -> dict[str, set[tuple[int, ...]]]:
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for layer in parts.blocks[: parts.n_trunk]:
        for stem, shape in layer.items():
            shapes.setdefault(stem, set()).add(shape)
    return shapes


def _fit_tensor(
    tensor: HeadTensor, shapes: dict[str, set[tuple[int, ...]]], problems: list[str]
) -> HeadTensor:
    """A vector may be stored as a matrix of one row; otherwise shapes are equal or wrong."""
    known = shapes.get(tensor.stem)
    if known is None or tensor.shape in known or tensor.stem == "attn_qkv.weight":
        return tensor
    for shape in known:
        if without_ones(shape) == without_ones(tensor.shape):
            return replace(tensor, shape=shape)
    problems.append(f"{tensor.stem} is {tensor.shape}, the layers' are {min(known)}")
    return tensor


def _missing(shapes: Shapes, layers: Sequence[Shapes]) -> list[str]:
    """Stems that the block lacks, compared with the layer of the trunk that is most like it."""
    missing: list[str] = []
    for kind in ("attention", "ffn"):
        have = _stems(shapes, kind)
        lacking = [sorted(_stems(layer, kind) - have) for layer in layers if _half(layer, kind)]
        if lacking:
            missing += lacking[min(range(len(lacking)), key=lambda i: len(lacking[i]))]
    return missing


def _stems(shapes: Shapes, kind: str) -> set[str]:
    """Stems of one half, with a fused matrix as the three that it is."""
    found: set[str] = set()
    for stem in shapes:
        if _is_of_ffn(stem) == (kind == "ffn") and not stem.startswith(_NOT_COMPARED):
            name, dot, ending = stem.partition(".")
            parts, _ = _FUSED.get(name, ((name,), 0))
            found |= {f"{part}{dot}{ending}" for part in parts}
    return found


def _half(shapes: Shapes, kind: str) -> Shapes:
    """Attention or the FFN of a block, with what may be fused as one; layers with a recurrent state
    have nothing that a head has."""
    is_ffn = kind == "ffn"
    half: Shapes = {}
    for stem, shape in shapes.items():
        if stem.startswith(_NOT_COMPARED) or _is_of_ffn(stem) != is_ffn:
            continue
        name, dot, ending = stem.partition(".")
        if name in _JOINED:
            whole = _JOINED[name]
            axis, key = _FUSED[whole][1], whole + dot + ending
            size = half[key][axis] if key in half else 0
            half[key] = (*shape[:axis], size + shape[axis], *shape[axis + 1 :])
        else:
            half[stem] = without_ones(shape)
    if not is_ffn and (any(s.startswith("ssm_") for s in half) or _OUTPUTS.isdisjoint(half)):
        return {}
    return half


def _is_of_ffn(stem: str) -> bool:
    return stem.startswith(("ffn_", "exp_probs_b")) and "norm" not in stem


def _nextn_problems(head: StoredHead, target: GgufFile) -> list[str]:
    table = target.tensors.get("token_embd.weight")
    width = target.metadata.int("embedding_length", low=1)
    wanted: dict[str, tuple[int, ...]] = {EH_PROJ: (width, 2 * width)}
    wanted |= dict.fromkeys(_NORMS, (width,))
    if table is not None:
        wanted |= {EMBED: table.shape, OWN_HEAD: table.shape}
    found = []
    for block in head.blocks:
        shapes = {tensor.stem: tensor.shape for tensor in block}
        found += [f"{stem} is missing" for stem in _ALWAYS if stem not in shapes]
        found += [
            f"{stem} is {shapes[stem]}, expected {shape}"
            for stem, shape in wanted.items()
            if stem in shapes and shapes[stem] != shape
        ]
    return found


# Suspicions --------------------------------------------------------------------------------------


def suspicions(head: StoredHead, target: GgufFile, parts: ModelParts) -> list[str]:
    """What differs between the model that the head was trained with and this one."""
    found = []
    ours = target.metadata.entry("tokenizer.ggml.tokens").value if _has_tokens(target) else None
    if head.tokens is not None and ours is not None and head.tokens.blob != ours.blob:
        found.append(f"their vocabularies differ ({len(head.tokens)} and {len(ours)} tokens)")
    trunk = GgufTrunk(target)
    for name in _probed(parts):
        tensor = target.tensors.get(name)
        if tensor is None:
            continue
        n_rows = tensor.n_elements // tensor.shape[-1]
        wanted = np.linspace(0, n_rows - 1, min(n_rows, _SAMPLED_ROWS)).astype(int).tolist()
        mine, theirs = trunk.rows(name, wanted), head.trunk.rows(name, wanted)
        if mine is None or theirs is None:
            continue
        exact = tensor.format.block_size == 1
        if (apart := _distance(mine, theirs)) > (_EXACT_APART if exact else _QUANTISED_APART):
            found.append(
                f"{name} differs by {apart:.0%}"
                if np.isfinite(apart)
                else f"{name} has another shape"
            )
    return found


def _has_tokens(target: GgufFile) -> bool:
    return "tokenizer.ggml.tokens" in target.metadata


def _probed(parts: ModelParts) -> Iterable[str]:
    yield from ("output_norm.weight", "token_embd.weight")
    for block in sorted({0, parts.n_trunk // 2, parts.n_trunk - 1}):
        yield f"blk.{block}.attn_norm.weight"
    full = [i for i in range(parts.n_trunk) if "attn_output.weight" in parts.blocks[i]]
    for block in sorted({*full[:1], *full[-1:]}):
        yield f"blk.{block}.attn_output.weight"


def _distance(mine: Floats, theirs: Floats) -> float:
    """Infinite where they cannot be compared."""
    if mine.shape != theirs.shape:
        return float("inf")
    size = float(np.sqrt(np.mean(np.square(theirs, dtype=np.float64))))
    error = float(np.sqrt(np.mean(np.square(mine - theirs, dtype=np.float64))))
    return error / size if size else float(error > 0)
