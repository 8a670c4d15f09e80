"""Sizes that every decoder has, read from GGUF metadata and range-checked once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import Struct

from ..errors import ModelError

if TYPE_CHECKING:
    from ..gguf.metadata import Metadata
    from ..gguf.reader import GgufFile

# llama.cpp stops at 512 layers; larger values are damage, not models.
MAX_LAYERS = 1024
MAX_WIDTH = 1 << 20


class Hparams(Struct, frozen=True):
    architecture: str
    n_layers: int  # trunk layers
    n_nextn: int  # MTP blocks behind them
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_heads: tuple[int, ...]  # per block, MTP blocks included
    n_kv_heads: tuple[int, ...]
    n_ff: tuple[int, ...]  # 0 where a file gives only the experts' width
    key_dim: int
    value_dim: int
    eps: float
    attention_scale: float
    n_deepstack: int = 0  # layers behind which a part of an embedded row is added

    @property
    def row_width(self) -> int:
        """Numbers of an embedded row: in place of an embedding, then what each such layer gets."""
        return self.n_embd * (1 + self.n_deepstack)

    @classmethod
    def from_gguf(
        cls, file: GgufFile, n_vocab: int | None = None, n_nextn: int | None = None
    ) -> Self:
        """`n_vocab`: of the model that a head belongs to; a head's file may have no vocabulary.
        `n_nextn`: MTP blocks, whatever the file calls them; None: what it says."""
        meta = file.metadata
        n_blocks = meta.int("block_count", low=1, high=MAX_LAYERS)
        if n_nextn is None:
            n_nextn = meta.int("nextn_predict_layers", 0, high=n_blocks - 1)
        n_embd = meta.int("embedding_length", low=1, high=MAX_WIDTH)
        # 0: a layer without attention.
        n_heads = meta.per_layer_ints("attention.head_count", n_blocks, low=0, high=MAX_WIDTH)
        head_dim = n_embd // (max(n_heads) or n_embd) or 1
        key_dim = meta.int("attention.key_length", head_dim, low=1, high=MAX_WIDTH)
        return cls(
            architecture=meta.architecture,
            n_layers=n_blocks - n_nextn,
            n_nextn=n_nextn,
            n_embd=n_embd,
            n_vocab=_vocabulary_size(file, n_vocab),
            n_ctx_train=meta.int("context_length", low=1),
            n_heads=n_heads,
            n_kv_heads=_kv_heads(file, n_heads),
            n_ff=meta.per_layer_ints("feed_forward_length", n_blocks, 0, high=MAX_WIDTH),
            key_dim=key_dim,
            value_dim=meta.int("attention.value_length", head_dim, low=1, high=MAX_WIDTH),
            eps=epsilon(meta),
            attention_scale=meta.float("attention.scale", 0.0, low=0.0) or key_dim**-0.5,
            n_deepstack=meta.int("n_deepstack_layers", 0, high=n_blocks - n_nextn),
        )


def epsilon(meta: Metadata) -> float:
    """Families with a LayerNorm have a key of their own."""
    names = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
    found = next((name for name in names if meta.has(name)), names[0])
    return meta.float(found, low=0.0, high=1.0)


def _kv_heads(file: GgufFile, n_heads: tuple[int, ...]) -> tuple[int, ...]:
    key = "attention.head_count_kv"
    n_kv = file.metadata.per_layer_ints(key, len(n_heads), n_heads[0], low=0, high=MAX_WIDTH)
    for layer, (heads, kv_heads) in enumerate(zip(n_heads, n_kv, strict=True)):
        # 0 stands for a layer without attention in some files of hybrids.
        if kv_heads and heads % kv_heads:
            raise ModelError(
                f"{file.label}: {file.metadata.full_key(key)}: layer {layer} has {heads} heads, "
                f"which {kv_heads} key-value heads cannot share evenly"
            )
    return n_kv


def _vocabulary_size(file: GgufFile, default: int | None) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None and default is not None:
        return default
    if table is None:
        raise ModelError(f"{file.label}: tensor token_embd.weight is missing; not a complete model")
    if len(table.shape) != 2 or not table.shape[0]:
        raise ModelError(
            f"{file.label}: token_embd.weight has shape {table.shape}, expected (vocabulary, width)"
        )
    return table.shape[0]
