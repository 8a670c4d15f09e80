"""An MTP head out of a checkpoint of safetensors files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from ...core.errors import ModelError
from ..checkpoint import ModelCheckpoint, StoredTensor
from ..checkpoint.byte_source import LocalSource
from ..checkpoint.repository import fetch_rows_ahead
from .checkpoint_weights import CheckpointWeights
from .family_table import BY_MODEL_TYPE, FAMILIES
from .head_block import TargetStyle, read_block
from .lazy_values import Floats
from .mtp_family import MtpFamily, Names
from .stored_head import EMBED, OWN_HEAD, HeadTensor, StoredHead

_SAMPLED: Final = 16  # rows at a time
_N_LAYERS: Final = ("num_hidden_layers", "num_layers", "n_layers")
# Where a copy would be, and the tensors of the trunk that it may be a copy of.
_COPIES: Final = {
    EMBED: ("model.embed_tokens.weight", "model.word_embeddings.weight"),
    OWN_HEAD: ("lm_head.weight", "model.embed_tokens.weight", "model.word_embeddings.weight"),
}


def read_checkpoint_head(
    checkpoint: ModelCheckpoint,
    architecture: str,
    names: Iterable[str],
    *,
    keep_copies: bool = False,
) -> StoredHead:
    """For a target of this architecture whose tensors have these `names`.

    `keep_copies`: also an embedding or output matrix that equals the trunk's, which readers of the
    file would take in its place.
    """
    weights = CheckpointWeights(checkpoint)
    family = _find_family(weights, architecture)
    n_trunk = _trunk_layers(weights)
    found = family.layout(weights, n_trunk)
    if not found:
        raise ModelError(_none_found(weights, n_trunk))
    style = TargetStyle.of(names)
    blocks, remarks = [], []
    for block_names in found:
        block = read_block(weights, family, block_names, style)
        dropped = [] if keep_copies else _copies(weights, family, block_names)
        blocks.append([tensor for tensor in block if tensor.stem not in dropped])
        remarks += [f"{stem} equals the trunk's and is left out" for stem in dropped]
        remarks += [_no_place(inner) for inner in family.left_out if inner in block_names]
    expected = weights.config.get("num_nextn_predict_layers")
    if isinstance(expected, int) and expected > len(blocks):
        remarks.append(f"config.json says {expected} heads, the files hold {len(blocks)}")
    return StoredHead(
        label=weights.label,
        architecture=family.architecture,
        n_trunk=n_trunk,
        blocks=[list(map(_squeezed, block)) for block in blocks],
        trunk=CheckpointTrunk(weights, family),
        layer_keys=family.layer_keys(weights.config, n_trunk, len(blocks)),
        files=tuple(checkpoint.place.paths()),
        stored=tuple(
            tensor
            for block_names in found
            for name in block_names.values()
            for tensor in weights.stored(name)
        ),
        remarks=tuple(dict.fromkeys(remarks)),
    )


def _find_family(weights: CheckpointWeights, architecture: str) -> MtpFamily:
    if architecture not in FAMILIES:
        raise ModelError(
            f"heads of {architecture} are not read from checkpoints (known: "
            f"{', '.join(FAMILIES)}); a GGUF file that has the head will do"
        )
    model_type = weights.config.get("model_type")
    theirs = BY_MODEL_TYPE.get(model_type, architecture) if isinstance(model_type, str) else None
    if theirs not in (None, architecture):
        raise ModelError(
            f"{weights.label} is a {model_type} ({theirs} in GGUF), the target a {architecture}: "
            f"they do not belong together"
        )
    return FAMILIES[architecture]


def _trunk_layers(weights: CheckpointWeights) -> int:
    pattern = weights.config.get("layers_block_type")
    if isinstance(pattern, list) and pattern:  # Nemotron-H counts these
        return len(pattern)
    return weights.number(*_N_LAYERS)


def _no_place(inner: str) -> str:
    return f"{inner} of the head has no name in GGUF and is left out: the model's is used instead"


def _none_found(weights: CheckpointWeights, n_trunk: int) -> str:
    return (
        f"{weights.label} has no MTP head: no tensors under mtp. and none of layer {n_trunk}; "
        f"were they dropped when it was saved again? The original checkpoint has them if "
        f"its model was trained with a head"
    )


def _squeezed(tensor: HeadTensor) -> HeadTensor:
    """Gates of a single row are vectors."""
    if tensor.stem == "ffn_gate_inp_shexp.weight" and tensor.shape[:-1] == (1,):
        return replace(tensor, shape=tensor.shape[1:])
    return tensor


# Copies of the trunk's matrices ------------------------------------------------------------------


def _copies(weights: CheckpointWeights, family: MtpFamily, names: Names) -> list[str]:
    found = []
    for inner, name in names.items():
        stem = family.stem(inner)
        original = next((o for o in _COPIES.get(stem or "", ()) if o in weights), None)
        if stem and original and _equal(weights.tensors[name], weights.tensors[original]):
            found.append(stem)
    return found


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    """To the bit; of what lies far away, some rows from all over have to be enough."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    starts = np.linspace(0, max(0, one.shape[0] - _SAMPLED), 4).astype(int).tolist()
    parts = [(start, min(start + _SAMPLED, one.shape[0])) for start in starts]
    if all(isinstance(tensor.source, LocalSource) for tensor in (one, other)):
        parts += one.slabs()
    return all(np.array_equal(one.raw(*part), other.raw(*part)) for part in parts)


# The trunk ---------------------------------------------------------------------------------------


class CheckpointTrunk:
    """Tensors that every family stores in the order of rows that GGUF has."""

    def __init__(self, weights: CheckpointWeights, family: MtpFamily) -> None:
        self.weights, self.family = weights, family

    def rows(self, name: str, wanted: Sequence[int]) -> Floats | None:
        source = next((n for n in self._candidates(name) if n in self.weights), None)
        if source is None:
            return None
        tensor = self.weights.tensors[source]
        if tensor.dtype.startswith(("F8", "U", "I")):  # their scales are not worth the trouble
            return None
        if len(tensor.shape) == 1:
            return tensor.floats() + np.float32(self.family.shifted_norms)
        fetch_rows_ahead(tensor, wanted)
        return np.concatenate([tensor.floats(row, row + 1) for row in wanted])

    def _candidates(self, name: str) -> list[str]:
        plain: dict[str, tuple[str, ...]] = {
            "token_embd.weight": (
                "model.embed_tokens.weight",
                "model.word_embeddings.weight",
                "backbone.embeddings.weight",
                "embed.weight",
            ),
            "output_norm.weight": ("model.norm.weight", "backbone.norm_f.weight", "norm.weight"),
            "output.weight": ("lm_head.weight", "head.weight"),
        }
        if name in plain:
            return list(plain[name])
        _, number, stem = name.split(".", 2)
        inner: dict[str, tuple[str, ...]] = {
            "attn_norm.weight": ("input_layernorm",),
            "attn_output.weight": ("self_attn.o_proj", "attention.dense", "attention.o_proj"),
        }
        stems = [f"model.layers.{number}.{each}.weight" for each in inner.get(stem, ())]
        if "norm" not in stem:
            return stems
        others = f"backbone.layers.{number}.norm.weight", f"layers.{number}.attn_norm.weight"
        return [*stems, *others]
