"""The field `lora` of requests: scales of LoRA adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ..generation import GenerateParams
from ..models.adapters import AdapterSet
from .api_errors import ApiError


class LoraScale(msgspec.Struct):
    id: Annotated[int, Meta(ge=0, description="as `GET /lora-adapters` lists them")]
    scale: float


LoraScales = Annotated[
    list[LoraScale] | None, Meta(description="scales of adapters; 0 where none is given")
]


def read_scales(
    given: Sequence[LoraScale] | None, adapters: AdapterSet | None
) -> tuple[float, ...] | None:
    """Of each adapter; None: nothing is said of them."""
    if given is None or (adapters is None and not any(each.scale for each in given)):
        return None
    if adapters is None:
        raise ApiError(400, "there are no adapters: start the server with --lora", param="lora")
    scales = [0.0] * len(adapters)
    for each in given:
        if each.id >= len(scales):
            known = f"0 to {len(scales) - 1}" if len(scales) > 1 else "0"
            raise ApiError(
                400, f"there is no adapter {each.id}; their ids are {known}", param="lora"
            )
        scales[each.id] = each.scale
    return adapters.check_scales(scales)


def scales_of_request(params: GenerateParams, adapters: AdapterSet | None) -> list[dict[str, Any]]:
    if adapters is None:
        return []
    scales = adapters.scales if params.adapters is None else params.adapters
    return [{"id": i, "scale": scale} for i, scale in enumerate(scales)]
