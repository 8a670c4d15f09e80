"""Sizes of the tower of an mmproj file, read from its keys and checked once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

from ..backend.layers import PlainActivation
from ..errors import ModelError
from ..gguf.printable import printable

if TYPE_CHECKING:
    from ..gguf.reader import GgufFile

MAX_WIDTH: Final = 1 << 16
MAX_LAYERS: Final = 256
MAX_PATCH: Final = 64
ARCHITECTURE: Final = "clip"


class TowerSizes(Struct, frozen=True):
    n_embd: int
    n_ff: int
    n_layers: int
    n_heads: int
    patch: int  # pixels of a patch's side
    merge: int  # patches of a row's side
    eps: float
    mean: tuple[float, ...]  # of each channel
    std: tuple[float, ...]
    activation: PlainActivation
    n_out: int  # numbers of a row, without what is added behind layers

    @classmethod
    def from_gguf(cls, file: GgufFile, merge_key: tuple[str, int]) -> Self:
        """`merge_key`: `Projector.merge_key`."""
        meta = file.metadata
        n_embd = meta.int("vision.embedding_length", low=4, high=MAX_WIDTH)
        n_heads = meta.int("vision.attention.head_count", low=1, high=MAX_WIDTH)
        if n_embd % (4 * n_heads):
            raise ModelError(
                f"{file.label}: clip.vision.embedding_length is {n_embd}, which "
                f"clip.vision.attention.head_count = {n_heads} does not divide into heads of a "
                "multiple of 4"
            )
        return cls(
            n_embd=n_embd,
            n_ff=meta.int("vision.feed_forward_length", low=1, high=MAX_WIDTH),
            n_layers=meta.int("vision.block_count", low=1, high=MAX_LAYERS),
            n_heads=n_heads,
            patch=meta.int("vision.patch_size", low=1, high=MAX_PATCH),
            merge=meta.int(*merge_key, low=1, high=8),
            eps=meta.float("vision.attention.layer_norm_epsilon", low=0.0, high=1.0),
            mean=meta.floats("vision.image_mean", length=3, low=-10.0, high=10.0),
            std=meta.floats("vision.image_std", length=3, low=1e-6, high=10.0),
            activation=_activation(file),
            n_out=meta.int("vision.projection_dim", low=1, high=1 << 20),
        )

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_heads

    @property
    def factor(self) -> int:
        """Pixels of the side of what becomes one row."""
        return self.patch * self.merge


def projector_type(file: GgufFile) -> str:
    """What the file says; ModelError if it holds no tower for images."""
    meta = file.metadata
    if meta.architecture != ARCHITECTURE:
        raise ModelError(
            f"{file.label}: general.architecture is {printable(meta.architecture)}, expected "
            f"'{ARCHITECTURE}': --mmproj takes the model's mmproj file"
        )
    if not meta.bool("has_vision_encoder", True):
        raise ModelError(f"{file.label}: clip.has_vision_encoder is false: it reads no images")
    of_both = meta.str("projector_type", None)
    return meta.str("vision.projector_type") if of_both is None else of_both


def _activation(file: GgufFile) -> PlainActivation:
    """Of feed-forward layers without gates."""
    meta = file.metadata
    gelu, silu = meta.bool("use_gelu", False), meta.bool("use_silu", False)
    if gelu and silu:
        raise ModelError(f"{file.label}: clip.use_gelu and clip.use_silu are both true")
    return PlainActivation.GELU_TANH if gelu else PlainActivation.GELU_QUICK
