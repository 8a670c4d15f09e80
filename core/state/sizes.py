"""How much state an engine keeps: contexts, sequences, pages, window, checkpoints."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ..errors import ConfigError

MIB: Final = 1 << 20
PAGE_LEN = 64  # cells: what a copy on write copies, and what sharing is rounded to while running
WINDOW = 65  # rows of the longest draft with the token before it; n-grams draft up to 64
# Prompts are cut at absolute multiples of this, so that a piece is the same piece whatever was
# found in the cache. It also bounds how long a prompt holds up the others' next token.
PREFILL_CHUNK: Final = 256
MAX_LAG: Final = 256  # rows that a drafter over hidden rows may be behind the target


class StateSizes(Struct, frozen=True):
    n_ctx: int  # tokens of one sequence
    n_slots: int = 1  # sequences at once
    n_checkpoints: int = 0  # states kept for prompts that begin alike; recurrent models only
    page_len: int = PAGE_LEN
    window: int = WINDOW
    kv_pages: int | None = None  # None: every slot can fill its context
    max_idle: int | None = None  # pages kept for later requests; None: all free ones

    def __post_init__(self) -> None:
        _at_least(1, "the context size", self.n_ctx)
        _at_least(1, "the number of parallel sequences", self.n_slots)
        _at_least(0, "the number of checkpoints", self.n_checkpoints)
        _at_least(1, "the page length", self.page_len)
        _at_least(1, "the draft window", self.window)
        _at_least(self.pages_per_slot, "the number of KV pages", self.n_pages)

    @property
    def pages_per_slot(self) -> int:
        return -(-self.n_ctx // self.page_len)

    @property
    def n_pages(self) -> int:
        # One more than all contexts take: to copy the page within which two sequences part.
        every = self.n_slots * self.pages_per_slot + 1
        return every if self.kv_pages is None else self.kv_pages

    @property
    def n_tokens(self) -> int:
        """That all sequences together can hold."""
        return min(self.n_pages * self.page_len, self.n_slots * self.n_ctx)


def with_cache(sizes: StateSizes, n_bytes: int, page_bytes: int, slot_bytes: int) -> StateSizes:
    """Add room for the prefix cache, beside the contexts. Half of it is for recurrent states, if
    there are any (`slot_bytes`)."""
    if not n_bytes:
        return replace(sizes, n_checkpoints=0, max_idle=0)
    n_states = n_bytes // 2 // slot_bytes if slot_bytes else 0
    n_pages = (n_bytes - n_states * slot_bytes) // page_bytes
    if n_pages < 1 or (slot_bytes and n_states < 1):
        least = -(-max(2 * slot_bytes, page_bytes) // MIB)
        raise ConfigError(
            f"cache-ram {n_bytes // MIB} is too little to keep anything: a state of this model "
            f"takes {slot_bytes / MIB:.1f} MiB and {sizes.page_len} tokens {page_bytes / MIB:.1f}; "
            f"give at least {least}, or 0 to keep nothing"
        )
    return replace(
        sizes, n_checkpoints=n_states, kv_pages=sizes.n_pages + n_pages, max_idle=n_pages
    )


def _at_least(least: int, what: str, value: int) -> None:
    if value < least:
        raise ConfigError(f"{what} must be at least {least}, got {value}")
