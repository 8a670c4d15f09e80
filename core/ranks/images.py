"""A sequence's saved state, put together from those of the ranks, and taken apart again.

The whole is what one device would have saved, so that either can load what the other has written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..backend.interface import SlotImage
from ..backend.layers import SplitShape

_HEADER: Final = "delta.header"  # the same on all ranks
_KINDS: Final = ("kv", "delta")


def join_images(images: Sequence[SlotImage], shape: SplitShape) -> SlotImage:
    """`images`: by rank."""
    whole: SlotImage = {}
    for kind in _KINDS:
        for layer, (rank, own) in enumerate(_places(shape, kind)):
            prefix = f"{kind}.{own}."
            for name, array in images[rank].items():
                if name.startswith(prefix):
                    whole[f"{kind}.{layer}.{name.removeprefix(prefix)}"] = array
    return whole | _join_stacks(images, shape)


def split_image(whole: SlotImage, shape: SplitShape, n_ranks: int) -> list[SlotImage]:
    """By rank."""
    images: list[SlotImage] = [{} for _ in range(n_ranks)]
    for kind in _KINDS:
        for layer, (rank, own) in enumerate(_places(shape, kind)):
            prefix = f"{kind}.{layer}."
            for name, array in whole.items():
                if name.startswith(prefix):
                    images[rank][f"{kind}.{own}.{name.removeprefix(prefix)}"] = array
    for name in filter(_is_stack, whole):
        for rank, image in enumerate(images):
            layers = _layers_of(shape, rank)
            if layers:
                image[name] = whole[name] if name == _HEADER else whole[name][layers]
    return images


def _join_stacks(images: Sequence[SlotImage], shape: SplitShape) -> SlotImage:
    whole: SlotImage = {}
    for rank, image in enumerate(images):
        layers = _layers_of(shape, rank)
        for name in filter(_is_stack, image):
            array = image[name]
            if name == _HEADER:
                whole.setdefault(name, array)
                continue
            if name not in whole:
                whole[name] = np.empty((len(shape.recurrent), *array.shape[1:]), array.dtype)
            whole[name][layers] = array
    return whole


def _is_stack(name: str) -> bool:
    """Of all recurrent layers."""
    kind, _, rest = name.partition(".")
    return kind == "delta" and "." not in rest


def _places(shape: SplitShape, kind: str) -> list[tuple[int, int]]:
    """Of each layer: its rank, and its number there."""
    ranks = shape.kv_ranks if kind == "kv" else shape.recurrent_ranks
    return [(rank, ranks[:i].count(rank)) for i, rank in enumerate(ranks)]


def _layers_of(shape: SplitShape, rank: int) -> list[int]:
    return [i for i, owner in enumerate(shape.recurrent_ranks) if owner == rank]
