"""All kernels: one row for each launcher module of this folder, which exports `KERNELS`."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from .kernel import Kernel, Source

MODULES: tuple[str, ...] = (
    "activate_rows",
    "attn_combine",
    "attn_prefill",
    "attn_prep",
    "attn_scalar",
    "attn_verify",
    "dequant",
    "draft_pick",
    "embed",
    "convolve_rows",
    "gate_rows",
    "gdn_chunk",
    "gdn_rows",
    "gdn_state",
    "gdn_step",
    "head_pick",
    "head_products",
    "mm_bf16_skinny",
    "mm_moe",
    "moe_route",
    "norm_quant",
    "page_copy",
    "qmm",
    "qmm_moe",
    "qmm_pair",
    "recurrence_parts",
    "round_times",
    "spec_accept",
    "sum_rows",
    "wide_rows",
)


@cache
def kernels_by_module() -> dict[str, tuple[Kernel, ...]]:
    loaded = {name: import_module(f".{name}", __package__) for name in MODULES}
    return {name: tuple(module.KERNELS) for name, module in loaded.items()}


def all_kernels() -> tuple[Kernel, ...]:
    return tuple(kernel for kernels in kernels_by_module().values() for kernel in kernels)


def all_sources() -> tuple[Source, ...]:
    return tuple(dict.fromkeys(kernel.source for kernel in all_kernels()))
