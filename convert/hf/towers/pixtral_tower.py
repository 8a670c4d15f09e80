"""The tower of Pixtral and Mistral 3: names of tensors, the row behind lines, and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....core.gguf.printable import printable
from ....core.gguf.types import Typed, ValueType
from ..matrix_rows import MatrixRows, OutputTensor, StoredMatrix
from .tower_layout import TOWER_PREFIXES, TowerLayout, TowerSource

if TYPE_CHECKING:
    from ...checkpoint import StoredTensor
    from .tower_layout import TowerTensors

_EPS: Final = 1e-5  # of all norms, in the authors' code
_BREAK: Final = "[IMG_BREAK]"
_EMBEDDING: Final = "embed_tokens.weight"


def _keys(source: TowerSource) -> dict[str, Any]:
    vision, whole = source.vision, source.whole
    if vision.model_type != "pixtral":
        raise vision.error(
            f"vision_config is of a {printable(vision.model_type)}: of this kind, pixtral alone "
            "can be converted"
        )
    eps = vision.number("layer_norm_eps", vision.get("layer_norm_eps"), _EPS)
    keys: dict[str, Any] = {
        "use_silu": True,
        "vision.feed_forward_length": vision.size("intermediate_size"),
        "vision.attention.layer_norm_epsilon": Typed(ValueType.F32, eps),
        "vision.image_size": vision.size("image_size"),
        "vision.projection_dim": whole.size("hidden_size"),
    }
    if whole.get("spatial_merge_size") is not None:
        keys["vision.spatial_merge_size"] = whole.size("spatial_merge_size")
    return keys


def _change(tensors: TowerTensors, name: str, tensor: StoredTensor) -> bool:
    if name == _EMBEDDING:
        token = _break_token(tensors.source)
        matrix = StoredMatrix(tensor)
        if token >= matrix.n_rows:
            raise tensors.error(tensor, f"has {matrix.n_rows} rows, and {_BREAK} is {token}")
        row = MatrixRows(matrix, range(token, token + 1))
        shape = (matrix.n_columns,)
        tensors.take(OutputTensor("v.token_embd.img_break", shape, (row,)))
        return True
    stem, _, kind = name.rpartition(".")
    if not stem.endswith(("attention.q_proj", "attention.k_proj")):
        return False
    target = tensors.block_target(stem, tensor)
    n_rows, n_heads = tensor.shape[0], tensors.source.vision.size("num_attention_heads")
    if n_rows % (2 * n_heads):
        raise tensors.error(tensor, f"has {n_rows} rows, which are no {n_heads} heads")
    # What turns together is half a head apart; in the file, neighbours.
    order = np.arange(n_rows).reshape(n_heads, 2, -1).swapaxes(1, 2).reshape(-1)
    tensors.put(f"{target}.{kind}", tensor, order)
    return True


def _break_token(source: TowerSource) -> int:
    """Its id, by the files of the tokenizer."""
    config = source.checkpoint.json("tokenizer_config.json") or {}
    listed = config.get("added_tokens_decoder")
    for number, token in listed.items() if isinstance(listed, Mapping) else ():
        if isinstance(token, Mapping) and token.get("content") == _BREAK and number.isdecimal():
            return int(number)
    added = (source.checkpoint.json("tokenizer.json") or {}).get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, Mapping) and token.get("content") == _BREAK:
            number = token.get("id")
            if type(number) is int and number >= 0:
                return number
    raise source.vision.error(
        f"tokenizer.json and tokenizer_config.json have no token {_BREAK}, whose row stands behind "
        "each line of an image"
    )


PIXTRAL: Final = TowerLayout(
    "a vision tower of Pixtral or Mistral 3",
    "pixtral",
    activation="silu",
    keys=_keys,
    stems={
        "patch_conv": "v.patch_embd",
        "ln_pre": "v.pre_ln",
        "projector.norm": "mm.input_norm",
        "projector.patch_merger.merging_layer": "mm.patch_merger",
        "projector.linear_1": "mm.1",
        "projector.linear_2": "mm.2",
    },
    in_block={
        "attention_norm": "ln1",
        "ffn_norm": "ln2",
        "attention.q_proj": "attn_q",
        "attention.k_proj": "attn_k",
        "attention.v_proj": "attn_v",
        "attention.o_proj": "attn_out",
        "feed_forward.gate_proj": "ffn_gate",
        "feed_forward.up_proj": "ffn_up",
        "feed_forward.down_proj": "ffn_down",
    },
    prefixes=TOWER_PREFIXES
    | dict.fromkeys(
        ("language_model.model.embed_tokens.", "model.language_model.embed_tokens."),
        "embed_tokens.",
    ),
    block="transformer.layers",
    defaults={"hidden_act": "gelu"},  # as of the authors' class
    change=_change,
)
