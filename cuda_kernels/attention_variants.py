"""What variants of attention's kernels share: names and definitions that follow from heads.

A variant is compiled for the heads' sizes and types, and for how many rows or columns it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .attention import AttentionHeads
from .kernel import Kernel, Source
from .kv_pages import KvHeads, KvPages


@dataclass(frozen=True, slots=True)
class Limits:
    """As `Kernel` declares them."""

    threads: int
    registers: int
    shared: int
    dynamic_shared: int


@cache
def variant_kernel(
    family: str,
    op: str,
    kv: KvHeads,
    width: int,
    defines: tuple[tuple[str, int], ...],
    limits: Limits,
) -> Kernel:
    """`family`: of the source, too. `kv`: of one head; `width`: rows or columns of a block."""
    dims = (kv.key_dim, kv.int8_keys), (kv.value_dim, kv.int8_values)
    types = "_".join(f"{dim}{'i8' if is_int8 else ''}" for dim, is_int8 in dims)
    name = f"{family}_{types}_x{width}"
    every: dict[str, str | int] = {"NAME": name}
    every |= {"KEY_DIM": kv.key_dim, "VALUE_DIM": kv.value_dim}
    every |= {"INT8_KEYS": int(kv.int8_keys), "INT8_VALUES": int(kv.int8_values)}
    return Kernel(
        name,
        Source(f"{family}.cu", (*every.items(), *defines)),
        op,
        threads=limits.threads,
        registers=limits.registers,
        shared=limits.shared,
        dynamic_shared=limits.dynamic_shared,
    )


def require_cells(heads: AttentionHeads, cells: KvPages) -> None:
    if cells.heads != heads.kv:
        raise ValueError(f"cells of {cells.heads}, heads of {heads.kv}")


def require_variant(heads: AttentionHeads, of_one_head: KvHeads) -> None:
    if of_one_head != heads.kv.of_one_head:
        raise ValueError(f"a kernel for {of_one_head}, heads of {heads.kv}")


def too_few(shared_of_a_block: int) -> ValueError:
    return ValueError(f"a block has {shared_of_a_block} bytes of shared memory: too few")
